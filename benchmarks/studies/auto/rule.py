r"""Find mu: a penalty in the units of the optimizer's first-order response. Torch alone.

With the violation c, a = grad c, g the gradient that the optimizer is about to use, r = g - w a the
rest of it (objective and other constraints), and the optimizer's preconditioner d:

    G   = sum_i lr a_i^2 / d_i           c that one unit of weight takes off in a step  [c / weight]
    rho = |r| / |a|                      the weight at which the penalty pulls like the rest
    s   = sqrt(EMA_50 c^2)               the usual size of c
    mu  = min(kappa / G, max(floor, eta rho / s)),  floor = min(kappa_0 / G, limit |g| / (|a| s))
    w   = [lambda + mu c]_+              every step: the weight that acts (no projection for "==")
    lambda <- [lambda + theta mu cbar]_+ every 20 steps
    theta = clip(1 - td (cbar_before - cbar) / cbar, 0, 1), same sign only: none while c falls fast

No constant has a unit. With F -> b F and f -> k f, mu becomes mu k / b^2 and w becomes w k / b: the
same gradient w a in units of f, hence the same theta. Only an optimizer's eps knows units.

Everything is a number, or a tensor with one entry per multiplier. Sums over parameters come first
and are all that ranks with shards of the parameters have to add up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

WIDE = torch.float64
TINY = 1e-150  # its square is a number, too


class Step(NamedTuple):
    """The optimizer's step for one parameter.

    Attributes:
        rate: lr, over 1 - momentum for plain descent, whose steps add up to that much.
        root: sqrt(v) as the optimizer holds it now; None for a step that is lr times the gradient.
        eps: what the optimizer adds to it.
    """

    rate: float
    root: Tensor | None
    eps: float


def steps(optimizer: Optimizer) -> Iterator[tuple[Tensor, Step]]:
    """Each parameter with a gradient, and what moves it.

    v is `exp_avg_sq` (bias-corrected where there are betas) or `square_avg`; an adaptive optimizer
    that has not stepped yet is about to take the square of the gradient.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                yield parameter, _step(parameter, group, optimizer.state.get(parameter, {}))


def _step(parameter: Tensor, group: Mapping[str, Any], state: Mapping[str, Any]) -> Step:
    rate, eps = float(group["lr"]), float(group.get("eps", 0.0))
    v = state.get("exp_avg_sq", state.get("square_avg"))
    if v is not None:
        unbias = 1 - group["betas"][1] ** float(state["step"]) if "betas" in group else 1.0
        return Step(rate, (v / unbias).sqrt(), eps)
    if eps:
        assert parameter.grad is not None
        return Step(rate, parameter.grad.abs(), eps)
    return Step(rate / (1 - group.get("momentum", 0.0)), None, 0.0)


class Sums(NamedTuple):
    """Squared norms; add those of all parameters (and of all shards)."""

    a: Tensor
    rest: Tensor
    total: Tensor

    def plus(self, other: Sums) -> Sums:
        return Sums(*(x + y for x, y in zip(self, other, strict=True)))

    @property
    def balance(self) -> Tensor:
        """rho."""
        return (self.rest / self.a.clamp(min=TINY)).sqrt()


def sums(a: Tensor, grad: Tensor, weight: Tensor | float) -> Sums:
    """Over the last dimension, in float64: squares of small gradients underflow in float32."""
    a, grad = a.to(WIDE), grad.to(WIDE)
    rest = grad - weight * a
    return Sums(*(x.square().sum(-1) for x in (a, rest, grad)))


def response(
    a: Tensor, grad: Tensor, weight: Tensor | float, step: Step, balance: Tensor | float
) -> Tensor:
    """One parameter's share of G.

    An adaptive step divides by sqrt(v), which vanishes with the gradient where objective and
    penalty cancel; what either of them would be alone, |r_i| and rho |a_i|, does not.
    """
    a, grad = a.to(WIDE), grad.to(WIDE)
    if step.root is None:
        return step.rate * a.square().sum(-1)
    alone = torch.maximum((grad - weight * a).abs(), balance * a.abs())
    return (step.rate * a.square() / (step.root.to(WIDE) + alone + step.eps)).sum(-1)


class AutoRate:
    """The state of the rule: eight numbers, or as many per multiplier.

    Call `see` with a step's violation, which returns the weight; then, on steps where
    `wants_gradient`, `calibrate`; then `advance` once the optimizer has stepped.

    Args:
        equality: where lambda may have either sign.
        shape: that of the violation.
    """

    KAPPA, FLOOR, ETA, LIMIT, DAMPING = 0.3, 1e-3, 0.3, 10.0, 5.0
    EVERY, EARLY, MEMORY, SMOOTH = 20, 60, 0.98, 0.9
    NUMBERS = ("multiplier", "gain", "balance", "pull", "norm", "square", "mean", "last")

    def __init__(self, equality: Tensor | bool = False, shape: torch.Size | None = None) -> None:
        self.equality = torch.as_tensor(equality)
        zero = torch.zeros(shape or torch.Size(), dtype=WIDE)
        for name in self.NUMBERS:
            setattr(self, name, zero)
        self.weight = zero
        self.count = 0

    @property
    def wants_gradient(self) -> bool:
        """Tell whether a is needed in this step: early in each, later in every 20th."""
        return self.count < self.EARLY or self.count % self.EVERY == 0

    @property
    def mu(self) -> Tensor:
        """The penalty; 0 until a gradient of the constraint has been seen."""
        gain, size = self.gain.clamp(min=TINY), self.square.sqrt().clamp(min=TINY)
        limit = self.LIMIT * self.pull / (self.norm * size).clamp(min=TINY)
        floor = torch.minimum(self.FLOOR / gain, torch.where(self.pull > 0, limit, torch.inf))
        wanted = torch.maximum(floor, self.ETA * self.balance / size)
        return torch.where(self.gain > 0, torch.minimum(self.KAPPA / gain, wanted), 0.0)

    def see(self, c: Tensor) -> Tensor:
        """w for the violation of this step."""
        c = c.to(WIDE)
        memory, smooth = (self.MEMORY, self.SMOOTH) if self.count else (0.0, 0.0)
        self.square = memory * self.square + (1 - memory) * c.square()
        self.mean = smooth * self.mean + (1 - smooth) * c
        self.weight = self._project(self.multiplier + self.mu * c)
        return self.weight

    def calibrate(self, found: Sums, gain: Tensor) -> None:
        """Take G and rho of this step: fast towards a smaller mu, by halves towards a larger one.

        Where a vanishes it says nothing, and what was known stays.
        """
        known, seen = self.gain > 0, (gain > 0) & (found.a > 0) & gain.isfinite()
        larger = torch.maximum(gain, 0.5 * (self.gain + gain))
        smaller = torch.minimum(found.balance, 0.5 * (self.balance + found.balance))
        self.gain = torch.where(seen, torch.where(known, larger, gain), self.gain)
        self.balance = torch.where(seen, torch.where(known, smaller, found.balance), self.balance)
        self.norm = torch.where(seen, found.a.sqrt(), self.norm)
        self.pull = torch.maximum(found.total.sqrt(), 0.9 * self.pull)

    def advance(self) -> None:
        """The step was taken."""
        self.count += 1
        if self.count % self.EVERY == 0:
            step = self._share() * self.mu * self.mean
            self.multiplier, self.last = self._project(self.multiplier + step), self.mean

    def _share(self) -> Tensor:
        """theta, against wind-up: nothing is stored while c is on its way to 0 anyway."""
        falling = (self.last - self.mean) / torch.where(self.mean == 0, 1.0, self.mean)
        share = (1 - self.DAMPING * falling).clamp(0, 1)
        return torch.where(self.last * self.mean > 0, share, 1.0)

    def _project(self, multiplier: Tensor) -> Tensor:
        return torch.where(self.equality, multiplier, multiplier.clamp(min=0))

    def state(self) -> dict[str, Any]:
        """Numbers only."""
        return {name: getattr(self, name).clone() for name in self.NUMBERS} | {"count": self.count}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`."""
        for name in self.NUMBERS:
            setattr(self, name, state[name].clone())
        self.count = state["count"]
