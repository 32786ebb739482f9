"""Pipelines that Transformers lacks."""
