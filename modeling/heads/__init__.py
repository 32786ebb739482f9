"""Task heads that all families share."""
