"""Measurements around the benchmarks; each runs as `python -m benchmarks.studies.NAME`."""
