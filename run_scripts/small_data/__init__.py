"""Commands that write small data sets, to try things out without a download."""
