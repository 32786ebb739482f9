"""Tokenizers of the kind the papers used, trained on your own text."""
