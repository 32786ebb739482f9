"""Preparation of inputs: tokenizer training, timm's image processor."""
