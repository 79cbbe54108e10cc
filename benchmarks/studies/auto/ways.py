"""The multiplier's ways: a fixed mu, the rule that finds its own, and the optimum's, held."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.studies.auto.engine import Cell, Part
from torch_alm import ALMConstraint, ConstraintGroup


class Fixed:
    """`ALMConstraint(mu=..., every=...)`: w = [lambda + mu c]_+; lambda = w on every `every`-th."""

    def __init__(self, mus: list[float], every: int = 1) -> None:
        self.mus, self.every = mus, every

    def begin(self, part: Part) -> None:
        mu = torch.tensor(self.mus, dtype=part.dtype).repeat(part.rows // part.copies)
        self.mu = mu[:, None]
        self.equal = torch.tensor([s == "==" for s in part.problem.sense])
        self.multiplier = torch.zeros(part.rows, len(self.equal), dtype=part.dtype)
        self.step = 0

    def loss(self, c: Tensor) -> Tensor:
        weight = self.multiplier + self.mu * c.detach()
        self.weight = torch.where(self.equal, weight, weight.clamp(min=0))
        return (self.weight * c).sum()

    def after_step(self) -> None:
        self.step += 1
        if self.step % self.every == 0:
            self.multiplier = self.weight


class Held:
    """The multiplier of the optimum, from the first step to the last: what noise alone leaves.

    Nobody has it; a controller that misses where this one does has lost nothing by its rule.
    """

    def __init__(self, multiplier: Tensor) -> None:
        self.multiplier = multiplier

    def begin(self, part: Part) -> None:
        self.weight = self.multiplier.to(part.dtype)

    def loss(self, c: Tensor) -> Tensor:
        return (self.weight * c).sum()

    def after_step(self) -> None: ...


class Auto:
    """`ALMConstraint(mu="auto")` of the library, one per cell and constraint, on its optimizer.

    Each reads all of a parameter's gradient, so that no other way may have copies beside it.
    """

    def begin(self, part: Part) -> None:
        self.part = part
        assert part.copies == part.fleet.copies == 1
        self.groups = [
            ConstraintGroup({f"{i:02}": self.constraint(part, i, cell) for i in range(part.size)})
            for cell in part.fleet.cells
        ]
        for group, optimizer in zip(self.groups, part.fleet.optimizers, strict=True):
            group.attach(optimizer)

    @staticmethod
    def constraint(part: Part, i: int, cell: Cell) -> ALMConstraint:
        alpha, sense = part.problem.alpha[i] * cell.unit_c, part.problem.sense[i]
        return ALMConstraint(lambda value: value[i], alpha, "auto", sense=sense)

    def loss(self, c: Tensor) -> Tensor:
        pairs = zip(self.groups, self.part.fleet.value, strict=True)
        return torch.stack([group(value) for group, value in pairs]).sum()

    def after_step(self) -> None: ...
