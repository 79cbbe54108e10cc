"""Three constraint controllers on the same problems."""
