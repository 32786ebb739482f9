"""Image processors."""
