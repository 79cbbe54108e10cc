"""Sums over shards, under the name that constraints know."""

from torch_alm._optim.gradients import reduced

__all__ = ["reduced"]
