"""Preparation of inputs: tokenizer training, the tokenizer of aMLP-japanese, timm's image processor."""
