"""Model configurations and the table that connects them to the Auto classes."""
