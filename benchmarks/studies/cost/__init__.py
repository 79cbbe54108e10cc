"""The cost of a step and of a run."""
