"""Weights of other libraries' models for ours."""
