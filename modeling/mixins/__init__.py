"""What models do besides computing: checkpoints with code, operation counts, other sequence lengths."""
