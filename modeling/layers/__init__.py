"""The papers' equations in plain PyTorch."""
