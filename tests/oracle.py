"""Algorithm 1 of SAUL by hand, in plain PyTorch: the reference that the library must equal.

Nothing of torch_alm is imported here. Losses are functions of the list of parameters; each step
gets the micro-batches' losses, so one micro-batch per step is the paper's algorithm to the letter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

Loss = Callable[[], Tensor]
Gradient = list[Tensor | None]


def differentiate(value: Tensor, theta: Sequence[Tensor], weight: float = 1.0) -> Gradient:
    """weight * grad L(theta), with None where L does not depend on a parameter."""
    trainable = [p for p in theta if p.requires_grad]
    if not trainable:
        return [None] * len(theta)
    start = torch.full_like(value, weight)
    found = iter(torch.autograd.grad(value, trainable, start, allow_unused=True))
    return [next(found) if p.requires_grad else None for p in theta]


def gradient(loss: Loss, theta: Sequence[Tensor]) -> tuple[Gradient, float]:
    """grad L(theta) and L(theta)."""
    value = loss()
    return differentiate(value, theta), value.item()


def length(g: Gradient) -> Tensor:
    """The joint L2 norm."""
    return torch.sqrt(sum((x.square().sum() for x in g if x is not None), torch.tensor(0.0)))


def clipped(g: Gradient, limit: float) -> Gradient:
    """The gradients after `torch.nn.utils.clip_grad_norm_`; 0 for no limit."""
    factor = min(1.0, limit / (length(g).item() + 1e-6)) if limit else 1.0
    return [None if x is None else x * factor for x in g]


@torch.no_grad()
def restore(theta: Sequence[Tensor], origin: Sequence[Tensor]) -> None:
    for p, x in zip(theta, origin, strict=True):
        p.copy_(x)


# --8<-- [start:grad_sam]
def grad_sam(
    loss: Loss, theta: Sequence[Tensor], rho: float, sign: float
) -> tuple[Gradient, float]:
    """Grad_SAM: gradient and value at theta + sign rho g / (||g|| + eps)."""
    g, _ = gradient(loss, theta)
    origin = [p.detach().clone() for p in theta]
    perturb(theta, g, [sign * rho] * len(theta))
    g_sam, value = gradient(loss, theta)
    restore(theta, origin)
    return g_sam, value


@torch.no_grad()
def perturb(theta: Sequence[Tensor], g: Gradient, rho: Sequence[Any], eps: float = 1e-12) -> None:
    """Theta + rho g / (||g|| + eps), with a rho for each parameter."""
    norm = length(g)
    for p, x, r in zip(theta, g, rho, strict=True):
        if x is not None:
            p.add_(r * x / (norm + eps))


# --8<-- [end:grad_sam]


class Stepper(Protocol):
    def step(self, theta: Sequence[Tensor], g: Gradient) -> None: ...


@dataclass
class AdamW:
    """AdamW (Loshchilov and Hutter 2019) on one list of parameters."""

    lr: float
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    t: dict[int, int] = field(default_factory=dict)
    m: dict[int, Tensor] = field(default_factory=dict)
    v: dict[int, Tensor] = field(default_factory=dict)

    @torch.no_grad()
    def step(self, theta: Sequence[Tensor], g: Gradient) -> None:
        """One step; parameters without a gradient are left alone, decay included."""
        for i, (p, x) in enumerate(zip(theta, g, strict=True)):
            if x is None:
                continue
            self.t[i] = self.t.get(i, 0) + 1
            self.m[i] = self.beta1 * self.m.get(i, torch.zeros_like(p)) + (1 - self.beta1) * x
            self.v[i] = self.beta2 * self.v.get(i, torch.zeros_like(p)) + (1 - self.beta2) * x * x
            m_hat = self.m[i] / (1 - self.beta1 ** self.t[i])
            v_hat = self.v[i] / (1 - self.beta2 ** self.t[i])
            p.sub_(self.lr * self.weight_decay * p)
            p.sub_(self.lr * m_hat / (v_hat.sqrt() + self.eps))


@dataclass
class Base:
    """One of torch's optimizers, which finds its gradients in the parameters."""

    optimizer: Optimizer

    def step(self, theta: Sequence[Tensor], g: Gradient) -> None:
        put(theta, g)
        self.optimizer.step()


def put(theta: Sequence[Tensor], g: Gradient) -> None:
    for p, x in zip(theta, g, strict=True):
        p.grad = None if x is None else x.clone()


def added(left: Gradient, right: Gradient) -> Gradient:
    """The sum, entry by entry; None is nothing."""
    pairs = zip(left, right, strict=True)
    return [a if b is None else (b if a is None else a + b) for a, b in pairs]


def mean(parts: Sequence[tuple[Gradient, float]]) -> tuple[Gradient, float]:
    """The mean of the micro-batches' gradients and values."""
    shares = [[None if x is None else x / len(parts) for x in g] for g, _ in parts]
    return reduce(added, shares), sum(value for _, value in parts) / len(parts)


@dataclass
class Saul:
    """Algorithm 1: theta, lambda, s_r, s_f."""

    theta: Sequence[Tensor]
    s_r: Stepper
    s_f: Stepper
    alpha: float
    mu: float
    multiplier: float
    rho_r: float
    rho_f: float
    sense: str = ">="
    scale: str = "gradient"

    # --8<-- [start:step]
    def step(self, retain: Sequence[Loss], forget: Sequence[Loss]) -> float:
        """One step over the micro-batches; returns lambda+."""
        worse = +1.0 if self.sense == "<=" else -1.0
        g_r, _ = mean([grad_sam(loss, self.theta, self.rho_r, +1.0) for loss in retain])
        g_f, value = mean([grad_sam(loss, self.theta, self.rho_f, worse) for loss in forget])
        c = value - self.alpha if self.sense == "<=" else self.alpha - value
        multiplier = max(self.multiplier + self.mu * c, 0.0)
        if multiplier > 0:
            self.forget_step([None if x is None else worse * x for x in g_f], multiplier)
        self.s_r.step(self.theta, g_r)
        self.multiplier = multiplier
        return multiplier

    # --8<-- [end:step]

    def forget_step(self, g: Gradient, multiplier: float) -> None:
        scaled_step(self.s_f, self.theta, g, multiplier, self.scale)


# --8<-- [start:forget_step]
@torch.no_grad()
def scaled_step(
    s_f: Stepper, theta: Sequence[Tensor], g: Gradient, multiplier: float, scale: str
) -> None:
    """The multiplier scales the gradient (the paper) or the finished step."""
    if scale == "gradient":
        s_f.step(theta, [None if x is None else multiplier * x for x in g])
        return
    before = [p.detach().clone() for p in theta]
    s_f.step(theta, g)
    for p, start in zip(theta, before, strict=True):
        p.copy_(start + multiplier * (p - start))


# --8<-- [end:forget_step]


@dataclass
class Alm:
    """The same constraint in one loss, whose gradient is g_r - lambda+ g_f; one optimizer.

    lambda+ is that of each micro-batch by itself, or with `so_far` of all up to it.
    """

    theta: Sequence[Tensor]
    s: Stepper
    alpha: float
    mu: float
    multiplier: float = 0.0
    so_far: bool = False

    def step(self, retain: Sequence[Loss], forget: Sequence[Loss]) -> float:
        """One step over the micro-batches; returns lambda+."""
        parts, values = [], list[float]()
        for kept, forgotten in zip(retain, forget, strict=True):
            (g_r, _), (g_f, value) = (gradient(loss, self.theta) for loss in (kept, forgotten))
            values.append(value)
            weight = self.plus(values if self.so_far else [value])
            pairs = zip(g_r, g_f, strict=True)
            parts.append(([x if y is None else x - weight * y for x, y in pairs], 0.0))
        self.s.step(self.theta, mean(parts)[0])
        self.multiplier = self.plus(values)
        return self.multiplier

    def plus(self, values: Sequence[float]) -> float:
        return max(self.multiplier + self.mu * (self.alpha - sum(values) / len(values)), 0.0)
