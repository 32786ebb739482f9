"""Studies: the papers' claims tested with small models, equal budgets and several seeds."""
