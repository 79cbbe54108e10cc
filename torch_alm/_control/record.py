"""What happened so far: steps, open gates, skipped measurements, the furthest overshoot."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from torch_alm._control import numbers
from torch_alm._control.best import Best, better
from torch_alm._control.numbers import Number, Truth
from torch_alm._control.stall import Stall
from torch_alm._control.terms import Terms, is_equality, is_met

COUNTS = ("steps", "active_steps", "skipped", "is_blind")


class Record:
    """A constraint's history in plain numbers."""

    def __init__(self) -> None:
        """Start before the first step."""
        self.steps = 0
        self.active_steps = 0
        self.skipped = 0
        self.is_blind = False  # the latest step saw nothing finite
        self.best: Best | None = None
        self.stall = Stall()
        self.overshoot: Number = 0.0
        self._first: Number = math.nan  # an equality overshoots to the side it did not come from

    def expand(self, size: torch.Size) -> None:
        """One overshoot per entry."""
        self.overshoot = numbers.expanded(self.overshoot, size)
        self._first = numbers.expanded(self._first, size)
        self.stall.expand(size)

    def state(self) -> dict[str, Any]:
        """Everything remembered, sharing no memory."""
        return {
            **{name: getattr(self, name) for name in COUNTS},
            "best": None if self.best is None else list(self.best),
            "stall": self.stall.state(),
            "overshoot": numbers.copied(self.overshoot),
            "first": numbers.copied(self._first),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`, sharing no memory with it."""
        for name in COUNTS:
            setattr(self, name, state[name])
        self.best = None if state["best"] is None else Best(*state["best"])
        self.stall.load(state["stall"])
        self.overshoot = numbers.copied(state["overshoot"])
        self._first = numbers.copied(state["first"])

    def step(self, c: Number, weight: Number, seen: Truth, terms: Terms) -> None:
        """Count a step with the violation c and the weight that acted."""
        self.steps += 1
        self.active_steps += numbers.any_of(weight != 0)
        self.is_blind = not numbers.any_of(seen)
        beyond = -c
        if is_equality(terms):
            side = numbers.choose(c > 0, 1.0, numbers.choose(c < 0, -1.0, math.nan))
            self._first = numbers.choose(self._first == self._first, self._first, side)
            beyond = beyond * self._first
        self.overshoot = numbers.choose(beyond > self.overshoot, beyond, self.overshoot)

    def watch_for_a_stall(self, c: Number, terms: Terms, *, is_capped: bool) -> None:
        """See whether growing pressure still helps."""
        is_pushing = terms.mu > 0 and not is_capped
        excess = numbers.choose(is_met(terms, c), 0.0, c) if is_pushing else 0.0 * c
        self.stall.watch(excess, terms.every)

    def rank(self, objective: float, value: Number) -> Best | None:
        """This step, if it is the best so far; remembered then."""
        new = Best(self.steps, objective, numbers.average(value))
        if not better(new, self.best):
            return None
        self.best = new
        return new
