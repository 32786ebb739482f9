"""Metrics of the tasks, computed on this machine."""
