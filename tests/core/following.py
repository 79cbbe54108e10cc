"""A constraint on numbers, with the multipliers that it goes through."""

from collections.abc import Iterable
from typing import Any

from torch_alm import ALMConstraint


def constraint(**given: Any) -> ALMConstraint:
    return ALMConstraint(None, **{"alpha": 1.0, "mu": 0.5, **given})


def follow(c: ALMConstraint, values: Iterable[Any]) -> list[Any]:
    """The multipliers after one step per value."""
    found = []
    for value in values:
        c.observe(value)
        c.step()
        found.append(c.multiplier)
    return found
