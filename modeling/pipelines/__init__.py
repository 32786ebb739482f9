"""Pipelines that Transformers does not have."""
