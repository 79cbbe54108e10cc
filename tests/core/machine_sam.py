"""A SAM by itself, its penalty and its loss scale; see `machine_oracle.py`."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.core.machine_oracle import Oracle, added, is_finite

GROWTH = 4  # steps without a skip until the loss scale doubles


class AloneOracle(Oracle):
    """One side; a loss scale, if any; the penalty of a constraint, if any."""

    def __init__(self, theta: list[Tensor], *, scale: float | None) -> None:
        super().__init__(theta)
        self.scale, self.growth = scale, 0
        self.has_perturbed = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        if self.controller is not None:
            self.controller.observed = []

    def penalty(self, value: Tensor, *, counts: bool) -> Tensor:
        """lambda+ c, moved to where ([lambda + mu c]_+^2 - lambda^2) / (2 mu) is at this value."""
        of = self.controller
        assert of is not None
        before, now = of.observed, (value.item(), 1.0)
        of.observed = [*before, now] if of.window > 1 else [now]
        weight, multiplier, mu = of.preview(), of.multiplier, of.mu
        of.observed = [*before, now] if counts else before
        if not math.isfinite(now[0]):
            return torch.zeros((), requires_grad=True)
        c = value - of.alpha if of.sense == "<=" else of.alpha - value
        at = c.item()
        level = multiplier * at + 0.5 * mu * at * at
        if of.sense != "==" and mu > 0 and multiplier + mu * at <= 0:
            level = -multiplier * multiplier / (2 * mu)
        return weight * (c - at) + level

    def take(self, objective: Callable[[], Any], weight: float) -> Tensor:
        side = self.sides["base"]
        side.eps = 1e-12 / (self.scale or 1.0)
        g, seen = side.gradient(objective, self.theta, weight * (self.scale or 1.0))
        self.put(added(self.grads(), g))
        self.has_perturbed = True
        return seen[0].detach()

    def keeps_gradients(self) -> bool:
        return self.has_perturbed

    def step(self, *, unscaled: bool = False) -> bool:
        """True if theta was stepped; a loss scale forbids it for what is not finite.

        A step that is skipped leaves the gradients scaled, as torch's fused optimizers do, unless
        the loop has `unscaled` them before.
        """
        self.has_stepped = True
        if self.scale is None:
            self.commit()
            return True
        is_fine, scale = is_finite(self.grads()), self.scale
        if is_fine or unscaled:
            self.put([None if g is None else g / scale for g in self.grads()])
        if is_fine:
            self.commit()
        elif self.controller is not None:
            self.controller.observed = []
        self.growth = self.growth + 1 if is_fine else 0
        self.scale = scale if is_fine else scale / 2
        if self.growth == GROWTH:
            self.growth, self.scale = 0, scale * 2
        return is_fine

    def commit(self) -> None:
        if not self.has_perturbed:
            self.warn_once("taken at theta")
        self.has_perturbed = False
        self.sides["base"].base.step()
        if self.controller is not None and self.controller.observed:
            self.said += self.controller.step()

    def resumed(self) -> "AloneOracle":
        new = super().resumed()
        new.has_perturbed = False
        return new

    def load(self, saved: "AloneOracle") -> None:
        super().load(saved)
        self.scale, self.growth = saved.scale, saved.growth
