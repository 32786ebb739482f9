"""Code shared by all commands: arguments, errors, precision, reports."""
