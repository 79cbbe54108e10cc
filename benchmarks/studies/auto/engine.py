"""Many copies of one problem at once: every copy has its optimizer, its units and its multipliers.

A copy is a row of theta. The rows of one cell are one parameter of a `torch.optim` optimizer, whose
arithmetic is elementwise: each row goes where it would go alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import vmap
from torch.optim import Optimizer

from benchmarks.studies.auto.optimum import Optimum
from benchmarks.studies.auto.problem import Data, Problem, seeded
from benchmarks.studies.auto.settings import SETTINGS


class Cell(NamedTuple):
    """One optimizer, and the units the objective and the measure are given in."""

    setting: str
    unit_f: float = 1.0
    unit_c: float = 1.0


class Way(Protocol):
    """A controller of R x m multipliers."""

    def begin(self, part: Part) -> None:
        """Before the first step."""
        ...

    def loss(self, c: Tensor) -> Tensor:
        """The penalties' sum for the violations c, (R, m), with their graph."""
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
        self._value = vmap(self.problem.measure, in_dims=(0, None))

    def theta(self) -> Tensor:
        return torch.cat(self.parameters)

    def step(self, ways: Sequence[tuple[Way, Part]], data: Data) -> None:
        theta = self.theta()
        value = self._value(theta, data)
        self.value, c = value * self.unit_c, self.problem.violation(value) * self.unit_c
        loss = (self._f(theta, data) * self.unit_f).sum()
        for way, part in ways:
            loss = loss + way.loss(c[part.index])
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        for way, _ in ways:
            way.after_step()

    @torch.no_grad()
    def judge(self) -> tuple[Tensor, Tensor]:
        """c and f on all data, in the problem's own units."""
        theta = self.theta()
        c = self.problem.violation(self._value(theta, self.problem.data))
        return c, self._f(theta, self.problem.data)


class Part:
    """The copies of every cell that one way controls: some rows of each parameter."""

    def __init__(self, fleet: Fleet, first: int, copies: int) -> None:
        self.fleet, self.problem, self.copies = fleet, fleet.problem, copies
        self.rows, self.dtype = len(fleet.cells) * copies, fleet.unit_f.dtype
        self.size = len(self.problem.alpha)
        every = torch.arange(len(fleet.parameters) * fleet.copies)
        self.index = every.view(-1, fleet.copies)[:, first : first + copies].reshape(-1)


def run(
    problem: Problem,
    best: Optimum,
    cells: Sequence[Cell],
    ways: Mapping[str, tuple[Way, int]],
    *,
    length: int = 2000,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    is_fresh: bool = False,
) -> dict[str, Tensor]:
    """Every way's relative violation and suboptimality, (cells, copies, 2).

    Means over the last tenth of the steps; of the ways each has a number of copies per cell.
    """
    copies = sum(count for _, count in ways.values())
    fleet, generator = Fleet(problem, cells, copies, dtype), seeded(1000 + seed)
    draws = (fleet.problem.fresh if is_fresh else fleet.problem.draws)(generator)
    parts: dict[str, tuple[Way, Part]] = {}
    first = 0
    for name, (way, count) in ways.items():
        parts[name] = (way, Part(fleet, first, count))
        way.begin(parts[name][1])
        first += count
    seen: list[tuple[Tensor, Tensor]] = []
    for step, data in enumerate(itertools.islice(draws, length)):
        fleet.step(list(parts.values()), data)
        if step >= 0.9 * length and step % 4 == 0:
            seen.append(fleet.judge())
    found = _errors(problem, best, seen)
    return {name: found[part.index].view(len(cells), -1, 2) for name, (_, part) in parts.items()}


def _errors(problem: Problem, best: Optimum, seen: list[tuple[Tensor, Tensor]]) -> Tensor:
    c, f = (torch.stack(part).double().mean(0) for part in zip(*seen, strict=True))
    equal = torch.tensor([sense == "==" for sense in problem.sense])
    beyond = torch.where(equal, c.abs(), c) / best.size
    found = torch.stack([beyond.clamp(min=0).amax(1), (f - best.value) / best.gap], 1)
    return torch.nan_to_num(found, nan=torch.inf)
