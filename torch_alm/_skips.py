"""Steps that a wrapper leaves out, told to whoever follows the optimizer inside it.

A GradScaler that finds an overflow tells at most the optimizer it would have stepped. A wrapper
that is told leaves its base alone, and nothing the base has shows it.
"""

from collections.abc import Iterable
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

from torch.optim import Optimizer


class Follower(Protocol):
    """Somebody who counts the steps of an optimizer."""

    def step_was_skipped(self) -> None:
        """Take note of a step that was to be taken and is not; its gradient is lost."""
        ...


_followers: "WeakKeyDictionary[Optimizer, WeakSet[Follower]]" = WeakKeyDictionary()


def follow(optimizer: Optimizer, follower: Follower) -> None:
    """Hear of the optimizer's skipped steps for as long as both live."""
    _followers.setdefault(optimizer, WeakSet()).add(follower)


def unfollow(optimizer: Optimizer, follower: Follower) -> None:
    """Hear of them no more."""
    _followers[optimizer].discard(follower)


def announce(optimizers: Iterable[Optimizer]) -> None:
    """Tell whoever follows one of these that its step is skipped."""
    for optimizer in optimizers:
        for follower in list(_followers.get(optimizer, ())):
            follower.step_was_skipped()
