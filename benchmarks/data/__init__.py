"""Data of the benchmarks: the embedded world, TOFU, and batches of either."""
