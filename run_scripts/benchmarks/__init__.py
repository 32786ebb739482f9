"""What is compared in the benchmarks, and how it is timed."""
