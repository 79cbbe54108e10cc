"""Choices under budgets: what to take, what to hold, which inputs to keep."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.studies.auto.problem import Data, Problem, normal, seeded, uniform


class Budget(Problem):
    """Fifty projects, each done in part; worth about one, the cost in ten thousands."""

    alpha, rate = (3e4,), 0.5

    def __init__(self) -> None:
        g = seeded(4)
        self.data = (uniform(g, 50), 1e4 * uniform(g, 50))
        self.start = torch.zeros(50, dtype=torch.float64)

    def objective(self, theta: Tensor, data: Data) -> Tensor:
        return -(torch.sigmoid(theta) * data[0]).sum()

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        return (torch.sigmoid(theta) * data[1]).sum()[None]


class Knapsack(Problem):
    """Compute gates: quality with diminishing returns; memory and time both run out."""

    sense, alpha, rate = ("<=", "<="), (6.0, 5e3), 0.5

    def __init__(self) -> None:
        g = seeded(5)
        self.data = (0.2 + uniform(g, 30), uniform(g, 30), 1e3 * uniform(g, 30))
        self.start = torch.zeros(30, dtype=torch.float64)

    def objective(self, theta: Tensor, data: Data) -> Tensor:
        share = torch.sigmoid(theta)
        return -(data[0] * torch.sqrt(share + 0.01)).sum()

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        share = torch.sigmoid(theta)
        return torch.stack([(share * data[1]).sum(), (share * data[2]).sum()])


class Portfolio(Problem):
    """The least variance with a return of at least 0.9, spread over several of ten assets."""

    sense, alpha, rate = (">=", "<="), (0.9, 0.2), 10.0

    def __init__(self) -> None:
        g = seeded(6)
        root = normal(g, 10, 10) * 0.4 + torch.diag(torch.linspace(0.3, 2, 10).double())
        self.data = (root @ root.T / 3, torch.linspace(0.2, 1.2, 10).double())
        self.start = torch.zeros(10, dtype=torch.float64)

    def objective(self, theta: Tensor, data: Data) -> Tensor:
        held = torch.softmax(theta, 0)
        return held @ data[0] @ held

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        held = torch.softmax(theta, 0)
        return torch.stack([held @ data[1], held @ held])


class Gates(Problem):
    """Regression whose inputs have gates; the expected number of open ones is limited to five."""

    alpha, rate = (5.0,), 0.1

    def __init__(self) -> None:
        g = seeded(7)
        x = normal(g, 200, 12)
        truth = torch.tensor([3.0, -2, 1.5, 1, -1, 0.6, 0.4, 0, 0, 0, 0, 0], dtype=torch.float64)
        self.data = (x, x @ truth + 0.1 * normal(g, 200))
        self.start = torch.cat([torch.ones(12).double() * 0.5, normal(g, 12) * 0.1 + 0.5])

    def objective(self, theta: Tensor, data: Data) -> Tensor:
        gate, weight = torch.sigmoid(theta[:12]), theta[12:]
        decay = 0.05 * weight.square().sum()
        return (data[0] @ (gate * weight) - data[1]).square().mean() + decay

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        return torch.sigmoid(theta[:12]).sum()[None]


class Stock(Problem):
    """Five goods against random demand: the least stock that serves 95 % of it; 50 days a step."""

    sense, alpha, rate, batch = (">=",), (0.95,), 0.5, 50

    def __init__(self) -> None:
        g = seeded(8)
        demand = torch.exp(0.4 * normal(g, 2000, 5)) * torch.tensor([1.0, 2, 0.5, 1.5, 1]).double()
        self.data = (demand, demand.sum(1).mean().expand(2000))
        self.start = torch.zeros(5, dtype=torch.float64)

    def objective(self, theta: Tensor, data: Data) -> Tensor:
        cost = torch.tensor([1.0, 1.5, 1, 0.5, 2], dtype=theta.dtype)
        return (cost * functional.softplus(theta)).sum()

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        demand, total = data
        served = torch.minimum(functional.softplus(theta), demand).sum(1)
        return (served / total).mean()[None]
