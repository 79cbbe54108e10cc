"""Run any benchmark: options, models, batches, the loop, the search, and ranks."""
