"""Algorithm 1 of SAUL by hand: nothing of torch_alm is imported here.

The inner optimizers are torch's own, so that each of their implementations can be put in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

Loss = Callable[[], Tensor]


def gradient(loss: Loss, theta: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """grad L(theta) and L(theta)."""
    value = loss()
    return list(torch.autograd.grad(value, theta)), value.detach()


@torch.no_grad()
def moved(theta: Sequence[Tensor], g: Sequence[Tensor], rho: float) -> list[Tensor]:
    """theta + rho * g / (||g|| + eps), not stored in theta."""
    squares = [x.double().square().sum().cpu() for x in g]
    scale = rho / (float(torch.stack(squares).sum().sqrt()) + 1e-12)
    return [p + (scale * x).to(p.dtype) for p, x in zip(theta, g, strict=True)]


@torch.no_grad()
def put(theta: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """theta <- values."""
    for p, x in zip(theta, values, strict=True):
        p.copy_(x)


def grad_sam(loss: Loss, theta: Sequence[Tensor], rho: float) -> tuple[list[Tensor], Tensor]:
    """Procedure Grad_SAM; a negative `rho` is the reverse one."""
    g, _ = gradient(loss, theta)
    origin = [p.detach().clone() for p in theta]
    put(theta, moved(theta, g, rho))
    g_sam, value = gradient(loss, theta)
    put(theta, origin)
    return g_sam, value


def step(optimizer: Optimizer, theta: Sequence[Tensor], g: Sequence[Tensor]) -> None:
    for p, x in zip(theta, g, strict=True):
        p.grad = x
    optimizer.step()
    for p in theta:
        p.grad = None


@dataclass
class Saul:
    """Algorithm 1: theta, lambda, and an optimizer of torch's on either side."""

    theta: Sequence[Tensor]
    retain: Optimizer
    forget: Optimizer
    rho: float
    mu: float
    multiplier: float = 0.0

    def step(self, retain: Loss, forget: Loss, alpha: float) -> float:
        """One step; returns lambda+."""
        g_r, _ = grad_sam(retain, self.theta, self.rho)
        g_f, value = grad_sam(forget, self.theta, -self.rho)
        self.multiplier = max(self.multiplier + self.mu * (alpha - float(value)), 0.0)
        if self.multiplier > 0:
            step(self.forget, self.theta, [-self.multiplier * x for x in g_f])
        step(self.retain, self.theta, g_r)
        return self.multiplier
