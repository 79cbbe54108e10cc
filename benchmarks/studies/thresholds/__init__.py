"""Targets, pressures and learning rates side by side."""
