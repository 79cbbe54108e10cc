"""lambda: the weight it gives in a step, what is remembered of it, and what it has seen."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from torch_alm._control import notices, numbers
from torch_alm._control.numbers import Number, Truth
from torch_alm._control.observations import Mean
from torch_alm._control.price import project
from torch_alm._control.record import Record
from torch_alm._control.smoothing import Filter
from torch_alm._control.terms import Terms, is_equality, is_met, signed, smoothing
from torch_alm._control.windup import Windup

NUMBERS = ("multiplier", "weight", "value", "violation")


class Controller:
    """The state of a constraint; a float each, or a float64 tensor with one entry per multiplier.

    `multiplier` is lambda and `weight` lambda+ of the latest step; `value` and `violation`, which
    is filtered, are the latest ones.
    """

    def __init__(self, start: Number) -> None:
        """Start with a multiplier and no step taken."""
        self.multiplier = self.weight = start
        self.value: Number = math.nan
        self.violation: Number = math.nan
        self.record = Record()
        self._filter, self._windup = Filter(), Windup()
        self._residual = math.inf

    def expand(self, size: torch.Size) -> None:
        """One multiplier per entry."""
        for name in NUMBERS:
            setattr(self, name, numbers.expanded(getattr(self, name), size))
        self.record.expand(size)
        self._windup.expand(size)

    def state(self) -> dict[str, Any]:
        """Everything remembered, sharing no memory."""
        return {
            **{name: numbers.copied(getattr(self, name)) for name in NUMBERS},
            "residual": self._residual,
            "filter": self._filter.state(),
            "windup": self._windup.state(),
            "record": self.record.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`, sharing no memory with it."""
        for name in NUMBERS:
            setattr(self, name, numbers.host(state[name]))
        self._residual = state["residual"]
        self._filter.load(state["filter"])
        self._windup.load(state["windup"])
        self.record.load(state["record"])

    @property
    def is_measured(self) -> bool:
        """Whether anything finite was ever seen."""
        return numbers.any_of(self.value == self.value)

    def rate(self, terms: Terms) -> float:
        """mu; 0 while warming up."""
        return terms.mu if self.record.steps >= terms.warmup else 0.0

    def is_capped(self, terms: Terms) -> bool:
        """Whether some entry is at its limit."""
        limit = terms.max_multiplier
        return limit is not None and numbers.any_of(abs(self.multiplier) >= limit)

    def preview(self, found: Mean, terms: Terms) -> Number:
        """The weight that a step with this mean would give; nothing is remembered."""
        c, how = signed(terms, found.value), smoothing(terms)
        if how.is_on:
            c = self._filter.copy().push(c, found.seen, how)
        return self._weight_of(c, found.seen, terms)

    def _weight_of(self, c: Number, seen: Truth, terms: Terms) -> Number:
        """[lambda + mu c]_+; lambda where nothing was seen."""
        weight = project(self.multiplier + self.rate(terms) * c, is_equality=is_equality(terms))
        return numbers.choose(seen, weight, self.multiplier)

    def step(self, found: Mean, terms: Terms) -> None:
        """One step of the controller: the weight, and on every `every`-th the multiplier."""
        is_warm = self.record.steps >= terms.warmup
        c = self._filter.push(signed(terms, found.value), found.seen, smoothing(terms))
        self.weight = self._weight_of(c, found.seen, terms)
        self.value = numbers.choose(found.seen, found.value, self.value)
        self.violation = numbers.choose(found.seen, c, self.violation)
        self.record.step(self.violation, self.weight, found.seen, terms)
        if terms.release is not None:
            self._windup.watch(is_met(terms, self.violation), found.seen)
        if is_warm and self.record.steps % terms.every == 0 and numbers.any_of(found.seen):
            self._update(found.seen, terms)
        self.record.watch_for_a_stall(self.violation, terms, is_capped=self.is_capped(terms))

    def _update(self, seen: Truth, terms: Terms) -> None:
        """lambda <- lambda+, or less where a rule against wind-up says so; then mu, if it grows."""
        before, was_capped = self.multiplier, self.is_capped(terms)
        stored = self._windup.stored(self.weight, before, self.violation, seen, terms)
        self.multiplier = numbers.choose(seen, stored, before)
        if terms.max_multiplier is not None and self.is_capped(terms) and not was_capped:
            notices.capped(terms.max_multiplier, self.violation)
        if terms.growth is not None and terms.mu > 0:
            residual = numbers.largest(abs(self.weight - before)) / terms.mu
            terms.mu = terms.growth.grown(terms.mu, residual, self._residual, terms.tolerance)
            self._residual = residual
