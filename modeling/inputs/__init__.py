"""Which tokens there are, where they stand, and which of them see each other."""
