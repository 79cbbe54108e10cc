"""Configurations that Hydra finds through `hydra.searchpath`."""
