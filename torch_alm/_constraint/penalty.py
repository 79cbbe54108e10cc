"""The penalty of a violation: the term an augmented Lagrangian has for one constraint.

Source: SAUL, section 4.1; Rockafellar 1973.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torch_alm._constraint import numbers
from torch_alm._constraint.numbers import Number
from torch_alm._constraint.observations import Observation


class Penalty(NamedTuple):
    """The penalty at one lambda, as a function of the value."""

    multiplier: Number
    alpha: Number
    mu: Number
    sense: str

    def of_entries(self, row: Tensor | None) -> "Penalty":
        """Select the entries in `row`, or all if it is None."""
        if row is None:
            return self
        numbered = (self.multiplier, self.alpha, self.mu)
        multiplier, alpha, mu = (numbers.pick(n, row) for n in numbered)
        return Penalty(multiplier, alpha, mu, self.sense)

    def at(self, c: Number) -> Number:
        """Compute ([lambda + mu c]_+^2 - lambda^2) / (2 mu) per entry; lambda c for mu = 0."""
        multiplier, mu = self.multiplier, self.mu
        if isinstance(c, Tensor):
            multiplier, mu = (_like(n, c) if isinstance(n, Tensor) else n for n in (multiplier, mu))
        quadratic = multiplier * c + 0.5 * mu * c * c
        if self.sense == "==" or not numbers.any_of(mu != 0):
            return quadratic
        floor = -multiplier * multiplier / (2 * mu)
        return numbers.choose((multiplier + mu * c > 0) | (mu == 0), quadratic, floor)

    def of(self, value: Tensor) -> Tensor:
        """Sum the penalties of a value, which keep its graph."""
        return torch.as_tensor(self.at(self._violation(value))).sum()

    def tangent(self, value: Tensor, *, weight: Number, now: Observation) -> Tensor:
        """Sum the penalties of a value as `now` has it, with the gradient weight grad c.

        Which weight is right may be known only from other steps and other ranks. As the penalty's,
        the second derivative is weight grad^2 c + mu grad c grad c^T where the weight is not 0.
        """
        c = self._violation(value)
        acts = weight == weight if self.sense == "==" else weight != 0
        curve = _like(numbers.choose(acts, 0.5 * self.mu, 0.0), c)
        curve = curve.clamp(max=torch.finfo(c.dtype).max)  # infinity times nothing is nan
        if isinstance(weight, Tensor):
            weight = _like(weight, c)
        there = numbers.beyond(self.alpha, self.sense, now.value, now.dtype)
        moved = c - c.detach()
        return ((weight + curve * moved) * moved + _like(self.at(there), c)).sum()

    def _violation(self, value: Tensor) -> Tensor:
        """Compute c on the value's device, in float32 or wider; alpha in the value's own type."""
        alpha = numbers.rounded(self.alpha, value.dtype)
        value = value.to(torch.promote_types(value.dtype, torch.float32))
        if isinstance(alpha, Tensor):
            alpha = _like(alpha, value)
        return value - alpha if self.sense == "<=" else alpha - value


def _like(number: Number, c: Tensor) -> Tensor:
    """Convert to the type and the device of c, which need not wait for a number of the host's."""
    if isinstance(number, Tensor):
        return number.to(c.device, c.dtype, non_blocking=True)
    if abs(number) > torch.finfo(c.dtype).max:  # which `new_full` refuses
        number = math.copysign(math.inf, number)
    return c.new_full((), number)
