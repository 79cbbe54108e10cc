"""Studies: each is run as `python -m benchmarks.studies.NAME`."""
