"""Followers of an optimizer's skipped steps, under the name that constraints know."""

from torch_alm._optim.wrapper import announce, follow, unfollow

__all__ = ["announce", "follow", "unfollow"]
