"""Makers of small data sets to try things out without a download; each is a command."""
