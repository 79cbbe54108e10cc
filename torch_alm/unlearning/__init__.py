"""Shared by the command and the benchmarks: files, models, adapters, and steps of unlearning.

Nothing here is promised to others; the modules are imported one by one, so that only those that
load models import transformers.
"""
