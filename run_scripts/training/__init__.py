"""Shared by the training commands: Trainer, models and tokenizers, model cards, hyper-parameter grids."""
