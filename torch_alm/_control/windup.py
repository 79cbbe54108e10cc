"""What the stored multiplier takes over from the weight: all of it, or less.

An integrator that is fed while its output can do no more has to unwind before it can do less.
The weight that acts is always [lambda + mu c]_+; the rules here are about what is remembered.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from torch_alm._control import numbers
from torch_alm._control.numbers import Number, Truth
from torch_alm._control.release import Release
from torch_alm._control.terms import Terms


class Windup:
    """The memory of the rules: the violation at the last update, and for how long it was met."""

    def __init__(self) -> None:
        """Start with no update seen."""
        self._before: Number = math.nan
        self._met_for: Number = 0.0

    def expand(self, size: torch.Size) -> None:
        """One memory per entry."""
        self._before = numbers.expanded(self._before, size)
        self._met_for = numbers.expanded(self._met_for, size)

    def state(self) -> dict[str, Any]:
        """Everything remembered, sharing no memory."""
        return {"before": numbers.copied(self._before), "met_for": numbers.copied(self._met_for)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`, sharing no memory with it."""
        self._before = numbers.copied(state["before"])
        self._met_for = numbers.copied(state["met_for"])

    def watch(self, is_met: Truth, seen: Truth) -> None:
        """Count the steps in a row in which the constraint was met."""
        run = numbers.choose(is_met, self._met_for + 1, self._met_for * 0)
        self._met_for = numbers.choose(seen, run, self._met_for)

    def stored(
        self, weight: Number, multiplier: Number, c: Number, seen: Truth, terms: Terms
    ) -> Number:
        """What an update stores, given the weight, the multiplier before and the violation."""
        stored = weight
        if terms.hold is not None:
            stored = self._held(stored, multiplier, c, terms.hold)
        if terms.release is not None:
            stored = self._released(stored, terms.release)
        if terms.max_multiplier is not None:
            stored = numbers.limited(stored, terms.max_multiplier)
        self._before = numbers.choose(seen, c, self._before)
        return stored

    def _held(self, weight: Number, multiplier: Number, c: Number, share: float) -> Number:
        """Conditional integration: no growth where the violation is going already.

        That is where c has kept the sign it had at the last update and is at most `share` of it.
        """
        ratio = c / self._before if isinstance(c, torch.Tensor) or self._before else math.nan
        is_going = (ratio > 0) & (ratio <= share) & (abs(weight) > abs(multiplier))
        return numbers.choose(is_going, multiplier, weight)

    def _released(self, stored: Number, rule: Release) -> Number:
        """Less of it, where the constraint has been met for long enough."""
        return numbers.choose(self._met_for >= rule.after, (1 - rule.share) * stored, stored)
