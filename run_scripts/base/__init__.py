"""What every script needs: arguments, errors, precision, reports."""
