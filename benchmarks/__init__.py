"""Benchmarks of the methods: TOFU, MUSE and WMDP, and what they cost."""
