"""Run any benchmark: options, models, batches, the loop, and the search."""
