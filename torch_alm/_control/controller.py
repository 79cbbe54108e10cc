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
from torch_alm._control.terms import Terms, is_equality, is_met, smoothing
from torch_alm._control.windup import Windup

NUMBERS = ("multiplier", "weight", "value", "violation")


class Controller:
    """The state of a constraint; a float each, or a float64 tensor with one entry per multiplier.

    `multiplier` is lambda and `weight` lambda+ of the latest step; `value` and `violation`, which
    is filtered, are the latest ones.
    """

    def __init__(self) -> None:
        """Start with no step taken."""
        self.multiplier: Number = 0.0
        self.weight: Number = 0.0
        self.value: Number = math.nan
        self.violation: Number = math.nan
        self.record = Record()
        self._filter, self._windup = Filter(), Windup()
        self._residual = math.inf

    def put(self, multiplier: Number) -> None:
        """Go on from this lambda."""
        self.multiplier = multiplier
        if self.record.steps == 0:
            self.weight = multiplier

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
        c, seen = self._filtered(found, terms, is_kept=False)
        return self._weight_of(c, seen, terms)[0]

    def overflows(self, found: Mean, terms: Terms) -> bool:
        """Whether a step with this mean would leave some multiplier as it is, to keep it finite."""
        c, seen = self._filtered(found, terms, is_kept=False)
        return _differ(found.seen, self._weight_of(c, seen, terms)[1])

    def _filtered(self, found: Mean, terms: Terms, *, is_kept: bool) -> tuple[Number, Truth]:
        """The violation that counts, and where there is one."""
        how, seen = smoothing(terms), numbers.only_finite(found.seen, found.c)
        if not (is_kept or how.is_on):
            return found.c, seen
        c = (self._filter if is_kept else self._filter.copy()).push(found.c, seen, how)
        return c, numbers.only_finite(seen, c)

    def _weight_of(self, c: Number, seen: Truth, terms: Terms) -> tuple[Number, Truth]:
        """[lambda + mu c]_+, and where it acts; lambda elsewhere, unseen or not finite."""
        weight = project(self.multiplier + self.rate(terms) * c, is_equality=is_equality(terms))
        acts = numbers.only_finite(seen, weight)
        return numbers.choose(acts, weight, self.multiplier), acts

    def step(self, found: Mean, terms: Terms) -> None:
        """One step of the controller: the weight, and on every `every`-th the multiplier."""
        is_warm = self.record.steps >= terms.warmup
        c, seen = self._filtered(found, terms, is_kept=True)
        self.weight, acts = self._weight_of(c, seen, terms)
        self.value = numbers.choose(seen, found.value, self.value)
        self.violation = numbers.choose(seen, c, self.violation)
        self.record.step(self.violation, self.weight, seen, terms)
        if terms.release is not None:
            self._windup.watch(is_met(terms, self.violation), seen)
        if is_warm and self.record.steps % terms.every == 0 and numbers.any_of(acts):
            self._update(acts, terms)
        self.record.watch_for_a_stall(self.violation, terms, is_capped=self.is_capped(terms))
        if _differ(found.seen, acts):
            self.record.skipped += 1
            notices.overflowed(self.multiplier, found.c, terms, self.record.skipped)

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


def _differ(one: Truth, other: Truth) -> bool:
    """Whether two truths differ in some entry."""
    return one is not other and numbers.any_of(one != other)
