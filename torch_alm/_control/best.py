"""The best step so far: the lowest objective among those that met the constraint."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias


class Best(NamedTuple):
    """A step: its number (from 1), its objective, and the constraint's value (mean of entries)."""

    step: int
    objective: float
    value: float


OnBest: TypeAlias = Callable[[Best], None]


def better(new: Best, old: Best | None) -> bool:
    """Whether the new step is to be preferred; an objective that is not finite never is."""
    if not -float("inf") < new.objective < float("inf"):
        return False
    return old is None or new.objective < old.objective
