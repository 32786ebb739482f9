"""Shared by all commands: arguments, errors, precision, reports."""
