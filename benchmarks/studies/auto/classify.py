"""Classifiers with a promise: a fair one, one that finds enough, one that seldom cries wolf."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.studies.auto.problem import Data, Problem, normal, seeded, uniform


def linear(theta: Tensor, x: Tensor) -> Tensor:
    return x @ theta[:-1] + theta[-1]


class Logistic(Problem):
    """A problem whose objective is the cross-entropy of a linear score."""

    def objective(self, theta: Tensor, data: Data) -> Tensor:
        score, label = linear(theta, data[0]), data[1]
        return (functional.softplus(score) - label * score).mean()


class Fairness(Logistic):
    """Logistic regression; two groups' mean scores may differ by 0.05 at most."""

    alpha, rate = (0.05,), 0.5

    def __init__(self, rows: int = 400) -> None:
        g = seeded(0)
        group = (uniform(g, rows) < 0.5).double()
        lean = torch.tensor([1.5, 0.5, 0, 0, 0], dtype=torch.float64)
        x = normal(g, rows, 5) + group[:, None] * lean
        label = (x[:, 0] + x[:, 2] + 0.3 * normal(g, rows) > 0.7).double()
        self.data = (x, label, group)
        self.start = 0.4 * normal(g, 6)

    def gap(self, theta: Tensor, data: Data) -> Tensor:
        x, _, group = data
        score = torch.sigmoid(linear(theta, x))
        inside, outside = group / group.mean(), (1 - group) / (1 - group).mean()
        return (score * (inside - outside)).mean()[None]

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        return self.gap(theta, data).abs()

    def smooth(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        gap = self.gap(theta, self.data)
        return torch.cat([gap - 0.05, -gap - 0.05]), gap[:0]


class FairnessBatches(Fairness):
    """Fairness from batches of 100: one-sided, as the size of a noisy number is biased."""

    batch = 100

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        return self.gap(theta, data)

    smooth = Problem.smooth


class Recall(Logistic):
    """A rare class of which at least nine in ten must be found, in mean score."""

    sense, alpha, rate = (">=",), (0.9,), 0.5

    def __init__(self, rows: int = 500) -> None:
        g = seeded(1)
        x = normal(g, rows, 4)
        label = (x[:, 0] + 0.7 * normal(g, rows) > 1.2).double()
        share = label.mean().expand(rows)
        self.data = (x, label, share)
        self.start = 0.4 * normal(g, 5)

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        x, label, share = data
        return (torch.sigmoid(linear(theta, x)) * label / share).mean()[None]


class RecallBatches(Recall):
    """Recall from batches of 100, about fifteen of them of the rare class."""

    batch = 100


class InactiveBatches(RecallBatches):
    """A promise that is kept anyway, by less than a batch's noise: the multiplier should be 0."""

    alpha = (0.45,)


class NeymanPearson(Problem):
    """Miss as little as possible with at most one false alarm in ten; 16 of each class a step."""

    alpha, rate, batch = (0.1,), 0.5, 16

    def __init__(self, rows: int = 4000) -> None:
        g = seeded(2)
        mean = torch.tensor([1.0, 0.5, 0, 0], dtype=torch.float64)
        self.data = (normal(g, rows, 4), normal(g, rows, 4) * 1.2 + mean)
        self.start = 0.4 * normal(g, 5)

    def objective(self, theta: Tensor, data: Data) -> Tensor:
        return functional.softplus(-linear(theta, data[1])).mean()

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        return torch.sigmoid(linear(theta, data[0])).mean()[None]


class GroupRecall(Logistic):
    """Recall of three groups, each with a threshold of its own: a vector of multipliers."""

    sense, alpha, rate = (">=",) * 3, (0.8, 0.85, 0.6), 0.5

    def __init__(self, rows: int = 600) -> None:
        g = seeded(3)
        group = torch.randint(3, (rows,), generator=g)
        x = normal(g, rows, 4) + 0.5 * torch.eye(4, dtype=torch.float64)[group]
        label = (x[:, 0] + x[:, 3] + 0.7 * normal(g, rows) > 1.0).double()
        found = functional.one_hot(group, 3).double() * label[:, None]
        self.data = (x, label, found / found.mean(0))
        self.start = 0.4 * normal(g, 5)

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        x, _, found = data
        return (torch.sigmoid(linear(theta, x))[:, None] * found).mean(0)
