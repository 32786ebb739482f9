"""Features of models beyond the forward pass: checkpoints with code, FLOP counts, other sequence lengths."""
