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

    def at(self, c: Number, row: Tensor | None = None) -> Number:
        """Compute ([lambda + mu c]_+^2 - lambda^2) / (2 mu) per entry; lambda c for mu = 0."""
        multiplier, mu = (numbers.pick(n, row) for n in (self.multiplier, self.mu))
        if isinstance(c, Tensor):
            multiplier, mu = (_like(n, c) if isinstance(n, Tensor) else n for n in (multiplier, mu))
        quadratic = multiplier * c + 0.5 * mu * c * c
        if self.sense == "==" or not numbers.any_of(mu != 0):
            return quadratic
        floor = -multiplier * multiplier / (2 * mu)
        return numbers.choose((multiplier + mu * c > 0) | (mu == 0), quadratic, floor)

    def of(self, value: Tensor, row: Tensor | None = None) -> Tensor:
        """Sum the penalties of a value, which keep its graph, over the entries in `row`, or all."""
        c, row = _merged(self._violation(value, row), row)
        return torch.as_tensor(self.at(c, row)).sum()

    def tangent(self, value: Tensor, *, weight: Number, now: Observation) -> Tensor:
        """Sum the penalties of a value as `now` has it, with the gradient weight grad c.

        Which weight is right may be known only from other steps and other ranks. As the penalty's,
        the second derivative is weight grad^2 c + mu grad c grad c^T where the weight is not 0.
        """
        alpha = numbers.pick(self.alpha, now.row)
        there = numbers.beyond(alpha, self.sense, now.value, now.dtype)
        if isinstance(there, Tensor):
            there, _ = _merged(there, now.row)
        c, row = _merged(self._violation(value, now.row), now.row)
        weight, mu = (numbers.pick(n, row) for n in (weight, self.mu))
        acts = weight == weight if self.sense == "==" else weight != 0
        curve = _like(numbers.choose(acts, 0.5 * mu, 0.0), c)
        curve = curve.clamp(max=torch.finfo(c.dtype).max)  # infinity times nothing is nan
        if isinstance(weight, Tensor):
            weight = _like(weight, c)
        moved = c - c.detach()
        return ((weight + curve * moved) * moved + _like(self.at(there, row), c)).sum()

    def _violation(self, value: Tensor, row: Tensor | None) -> Tensor:
        """Compute c on the value's device, in float32 or wider; alpha in the value's own type."""
        alpha = numbers.pick(numbers.rounded(self.alpha, value.dtype), row)
        value = value.to(torch.promote_types(value.dtype, torch.float32))
        if isinstance(alpha, Tensor):
            alpha = _like(alpha, value)
        return value - alpha if self.sense == "<=" else alpha - value


def _merged(c: Tensor, row: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Average the violations at one index: there is one penalty per multiplier."""
    if row is None:
        return c, row
    entries, inverse, counts = row.unique(return_inverse=True, return_counts=True)
    if len(entries) == len(row):
        return c, row
    sums = c.new_zeros(len(entries)).index_add(0, inverse.to(c.device), c)
    return sums / counts.to(c.device, c.dtype), entries


def _like(number: Number, c: Tensor) -> Tensor:
    """Convert to the type and the device of c, which need not wait for a number of the host's."""
    if isinstance(number, Tensor):
        return number.to(c.device, c.dtype, non_blocking=True)
    if abs(number) > torch.finfo(c.dtype).max:  # which `new_full` refuses
        number = math.copysign(math.inf, number)
    return c.new_full((), number)
