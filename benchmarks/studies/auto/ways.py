"""The multiplier's ways: a fixed mu, and the rule that finds its own."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.studies.auto.engine import Fleet


class Fixed:
    """`ALMConstraint(mu=..., every=...)`: w = [lambda + mu c]_+; lambda = w on every `every`-th."""

    def __init__(self, mus: list[float], every: int = 1) -> None:
        self.mus, self.every = mus, every

    def begin(self, fleet: Fleet) -> None:
        mu = torch.tensor(self.mus, dtype=fleet.unit_f.dtype).repeat(len(fleet.cells))
        scale = fleet.unit_f / fleet.unit_c[:, 0].square()
        size = torch.tensor(fleet.problem.alpha, dtype=mu.dtype).abs()
        self.mu = mu[:, None] * scale[:, None] if fleet.copies == len(self.mus) else mu[:, None]
        self.equal = torch.tensor([s == "==" for s in fleet.problem.sense])
        self.multiplier = torch.zeros(fleet.rows, len(size), dtype=mu.dtype)
        self.step = 0

    def loss(self, c: Tensor) -> Tensor:
        weight = self.multiplier + self.mu * c.detach()
        self.weight = torch.where(self.equal, weight, weight.clamp(min=0))
        return (self.weight * c).sum()

    def before_step(self, fleet: Fleet) -> None: ...

    def after_step(self) -> None:
        self.step += 1
        if self.step % self.every == 0:
            self.multiplier = self.weight
