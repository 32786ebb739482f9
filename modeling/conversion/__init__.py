"""Conversion of weights from other libraries."""
