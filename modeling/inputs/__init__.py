"""Which tokens there are, their positions, and which tokens they see."""
