"""The tokens of a batch, their positions, and the tokens they can see."""
