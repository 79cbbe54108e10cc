"""Many copies of one problem at once: every copy has its optimizer, its units and its multipliers.

A copy is a row of theta. The rows of one cell are one parameter of a `torch.optim` optimizer, whose
arithmetic is elementwise: each row goes where it would go alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import vmap
from torch.optim import Optimizer

from benchmarks.studies.auto.optimum import Optimum
from benchmarks.studies.auto.problem import Problem, seeded
from benchmarks.studies.auto.settings import SETTINGS


class Cell(NamedTuple):
    """One optimizer, and the units the objective and the measure are given in."""

    setting: str
    unit_f: float = 1.0
    unit_c: float = 1.0


class Way(Protocol):
    """A controller of R x m multipliers."""

    def begin(self, fleet: Fleet) -> None:
        """Before the first step."""
        ...

    def loss(self, c: Tensor) -> Tensor:
        """The penalties' sum for the violations c, (R, m), with their graph."""
        ...

    def before_step(self, fleet: Fleet) -> None:
        """Gradients have arrived, theta has not moved."""
        ...

    def after_step(self) -> None: ...


class Fleet:
    """R copies of one problem: theta (R, n) in one parameter per cell."""

    def __init__(
        self, problem: Problem, cells: Sequence[Cell], copies: int, dtype: torch.dtype
    ) -> None:
        self.problem, self.cells, self.copies = problem.to(dtype), cells, copies
        start = self.problem.start
        self.parameters = [start.repeat(copies, 1).requires_grad_() for _ in cells]
        self.optimizers: list[Optimizer] = [
            SETTINGS[cell.setting].optimizer(p, problem.rate, cell.unit_f)
            for p, cell in zip(self.parameters, cells, strict=True)
        ]
        self.unit_f = torch.tensor([cell.unit_f for cell in cells for _ in range(copies)])
        self.unit_c = torch.tensor([[cell.unit_c] for cell in cells for _ in range(copies)])
        self.unit_f, self.unit_c = self.unit_f.to(dtype), self.unit_c.to(dtype)
        self._f = vmap(self.problem.objective, in_dims=(0, None))
        self._c = vmap(lambda t, d: self.problem.violation(self.problem.measure(t, d)), (0, None))

    @property
    def rows(self) -> int:
        return len(self.cells) * self.copies

    def theta(self) -> Tensor:
        return torch.cat(self.parameters)

    def gradient(self) -> Tensor:
        return torch.cat([p.grad for p in self.parameters if p.grad is not None])

    def step(self, way: Way, generator: torch.Generator) -> None:
        data = self.problem.draw(generator)
        theta = self.theta()
        self.c = self._c(theta, data) * self.unit_c
        loss = (self._f(theta, data) * self.unit_f).sum() + way.loss(self.c)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward(retain_graph=True)
        way.before_step(self)
        for optimizer in self.optimizers:
            optimizer.step()
        way.after_step()

    @torch.enable_grad()
    def constraint_gradients(self) -> Tensor:
        """grad c, (R, m, n)."""
        each = [
            torch.cat(torch.autograd.grad(column.sum(), self.parameters, retain_graph=True))
            for column in self.c.unbind(1)
        ]
        return torch.stack(each, 1)

    @torch.no_grad()
    def judge(self) -> tuple[Tensor, Tensor]:
        """c and f on all data, in the problem's own units."""
        theta = self.theta()
        return self._c(theta, self.problem.data), self._f(theta, self.problem.data)


def run(
    problem: Problem,
    best: Optimum,
    cells: Sequence[Cell],
    way: Way,
    *,
    copies: int = 1,
    steps: int = 2000,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Relative violation and suboptimality, (R, 2): means over the last tenth of the steps."""
    fleet, generator = Fleet(problem, cells, copies, dtype), seeded(1000 + seed)
    way.begin(fleet)
    seen: list[tuple[Tensor, Tensor]] = []
    every = 4 if problem.batch else 1
    for step in range(steps):
        fleet.step(way, generator)
        if step >= 0.9 * steps and step % every == 0:
            seen.append(fleet.judge())
    c, f = (torch.stack(part).double().mean(0) for part in zip(*seen, strict=True))
    equal = torch.tensor([sense == "==" for sense in problem.sense])
    beyond = torch.where(equal, c.abs(), c) / best.size
    found = torch.stack([beyond.clamp(min=0).amax(1), (f - best.value) / best.gap], 1)
    return torch.nan_to_num(found, nan=torch.inf)


def solved(found: Tensor) -> Tensor:
    """At most 1 % violated and 2 % short of the optimum."""
    return (found[:, 0] <= 0.01) & (found[:, 1] <= 0.02)
