"""A constrained problem with a known optimum: minimise f(theta) subject to F(theta) against alpha.

A problem is written for one flat theta, as a person would; the study runs many copies at once.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Generator, Tensor

Data = tuple[Tensor, ...]


class Problem:
    """A problem; a subclass states `start`, `data`, `objective`, `measure`, `sense`, `alpha`.

    Attributes:
        start: the first theta, shape (n,).
        data: what `objective` and `measure` read: all of it. Violation and objective are judged on
            this, also where a step sees only a draw.
        sense: ">=", "<=" or "==", one per entry of what `measure` returns.
        alpha: the thresholds, one per entry.
        batch: examples per step; 0: all, always.
        rate: a step size that suits plain gradient descent on the objective: about 1/curvature.
    """

    sense: ClassVar[tuple[str, ...]] = ("<=",)
    alpha: ClassVar[tuple[float, ...]]
    batch: ClassVar[int] = 0
    rate: ClassVar[float] = 0.1
    lower_bound: ClassVar[float | None] = None
    start: Tensor
    data: Data = ()

    @property
    def name(self) -> str:
        return "".join("_" * c.isupper() + c.lower() for c in type(self).__name__)[1:]

    def objective(self, theta: Tensor, data: Data) -> Tensor:
        """f, to be minimised; a scalar."""
        raise NotImplementedError

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        """F, shape (m,)."""
        raise NotImplementedError

    def draws(self, generator: Generator) -> Iterator[Data]:
        """The data of each step: all, or the batches of epochs as a shuffling loader makes them."""
        if not self.batch:
            yield from itertools.repeat(self.data)
        while True:
            order = torch.randperm(len(self.data[0]), generator=generator)
            for rows in order.split(self.batch):
                if len(rows) == self.batch:
                    yield tuple(each[rows] for each in self.data)

    def fresh(self, generator: Generator) -> Iterator[Data]:
        """Batches of a stream that never ends: any row, whenever it was seen last."""
        while True:
            rows = torch.randint(len(self.data[0]), (self.batch,), generator=generator)
            yield tuple(each[rows] for each in self.data)

    def thresholds(self) -> Tensor:
        return torch.tensor(self.alpha, dtype=self.start.dtype)

    def violation(self, value: Tensor) -> Tensor:
        """c = F - alpha for "<=", alpha - F otherwise; positive is violated."""
        sign = [1.0 if sense == "<=" else -1.0 for sense in self.sense]
        return (value - self.thresholds()) * torch.tensor(sign, dtype=value.dtype)

    def smooth(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Inequalities c <= 0 and equalities c == 0 in a form that a smooth solver can take."""
        c = self.violation(self.measure(theta, self.data))
        equal = torch.tensor([sense == "==" for sense in self.sense])
        return c[~equal], c[equal]

    def lift(self, theta: Tensor) -> Tensor:
        """The smooth solver's first point, where it needs more variables than theta."""
        return theta

    def lower(self, point: Tensor) -> Tensor:
        """Theta of a smooth solver's point."""
        return point

    def to(self, dtype: torch.dtype) -> Problem:
        """Convert the problem to another precision."""
        other = copy.copy(self)
        other.start = self.start.to(dtype)
        other.data = tuple(x.to(dtype) if x.is_floating_point() else x for x in self.data)
        return other


def seeded(seed: int) -> Generator:
    return torch.Generator().manual_seed(seed)


def normal(generator: Generator, *size: int) -> Tensor:
    return torch.randn(*size, generator=generator, dtype=torch.float64)


def uniform(generator: Generator, *size: int) -> Tensor:
    return torch.rand(*size, generator=generator, dtype=torch.float64)
