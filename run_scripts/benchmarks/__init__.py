"""The benchmarks: models side by side, timing, results and their tables."""
