"""Configurations and cards of the published models, one folder each."""
