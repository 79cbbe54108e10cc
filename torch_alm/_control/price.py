"""The price of a violation: the term an augmented Lagrangian has for one constraint.

Source: SAUL, section 4.1; Rockafellar 1973.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from torch_alm._control import numbers
from torch_alm._control.numbers import Number
from torch_alm._control.observations import Observation
from torch_alm._control.terms import beyond


def project(multiplier: Number, *, is_equality: bool) -> Number:
    """[lambda]_+; an equality's multiplier may have any sign."""
    return multiplier if is_equality else numbers.positive(multiplier)


class Tariff(NamedTuple):
    """What a value is priced by."""

    multiplier: Number
    alpha: Number
    mu: float
    sense: str

    def of_entries(self, row: Tensor | None) -> "Tariff":
        """That of some entries; without a row, of all."""
        if row is None:
            return self
        multiplier, alpha = (numbers.pick(n, row) for n in (self.multiplier, self.alpha))
        return Tariff(multiplier, alpha, self.mu, self.sense)

    def price(self, c: Number) -> Number:
        """([lambda + mu c]_+^2 - lambda^2) / (2 mu), entry by entry; lambda c for mu = 0."""
        multiplier, mu = self.multiplier, self.mu
        if isinstance(multiplier, Tensor) and isinstance(c, Tensor):
            multiplier = _like(multiplier, c)
        quadratic = multiplier * c + 0.5 * mu * c * c
        if self.sense == "==" or mu == 0:
            return quadratic
        floor = -multiplier * multiplier / (2 * mu)
        return numbers.choose(multiplier + mu * c > 0, quadratic, floor)

    def penalty(self, value: Tensor) -> Tensor:
        """The price of a value that keeps its graph, summed."""
        return torch.as_tensor(self.price(self._violation(value))).sum()

    def tangent(self, value: Tensor, *, weight: Number, now: Observation) -> Tensor:
        """The price of a value as `now` has it, and the gradient weight grad c; summed.

        Which weight is right may be known only from other steps and other ranks.
        """
        c = self._violation(value)
        if isinstance(weight, Tensor):
            weight = _like(weight, c)
        at = beyond(self.alpha, self.sense, now.value, now.dtype)
        return (weight * (c - c.detach()) + _like(self.price(at), c)).sum()

    def _violation(self, value: Tensor) -> Tensor:
        """c on the value's device, in float32 or wider; alpha as the value's own type has it."""
        alpha = numbers.rounded(self.alpha, value.dtype)
        value = value.to(torch.promote_types(value.dtype, torch.float32))
        if isinstance(alpha, Tensor):
            alpha = _like(alpha, value)
        return value - alpha if self.sense == "<=" else alpha - value


def _like(number: Number, c: Tensor) -> Tensor:
    """In the type and on the device of c."""
    return torch.as_tensor(number, dtype=c.dtype, device=c.device)
