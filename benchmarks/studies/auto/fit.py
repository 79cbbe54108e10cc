"""Fits with side conditions: sparse, small, physical, good for every group, or none that acts."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.studies.auto.problem import Data, Problem, normal, seeded


class LeastSquares(Problem):
    """A problem whose objective is a mean square."""

    def objective(self, theta: Tensor, data: Data) -> Tensor:
        return (data[0] @ theta - data[1]).square().mean()


class L1(LeastSquares):
    """Least squares with an L1 budget of five: the lasso in its constrained form."""

    alpha, rate = (5.0,), 0.05

    def __init__(self) -> None:
        g = seeded(11)
        x = normal(g, 200, 30)
        truth = torch.zeros(30, dtype=torch.float64)
        truth[:5] = torch.tensor([3.0, -2, 1.5, 1, -1])
        self.data = (x, x @ truth + 0.1 * normal(g, 200))
        self.start = 0.01 * normal(g, 30)

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        return theta.abs().sum()[None]

    def smooth(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Theta in two parts, both at least 0."""
        return torch.cat([theta.sum()[None] - 5.0, -theta]), theta[:0]

    def lift(self, theta: Tensor) -> Tensor:
        return torch.cat([theta.clamp(min=0), (-theta).clamp(min=0)])

    def lower(self, point: Tensor) -> Tensor:
        return point[:30] - point[30:]


class Ball(LeastSquares):
    """Least squares within a ball, from outside of it."""

    alpha, rate = (2.0,), 0.05

    def __init__(self) -> None:
        g = seeded(12)
        x = normal(g, 100, 8) * torch.linspace(0.5, 1.5, 8)
        self.data = (x, x @ normal(g, 8) + 0.3 * normal(g, 100))
        self.start = torch.full((8,), 1.5, dtype=torch.float64)

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        return theta.square().sum()[None]


class Inactive(Ball):
    """A ball so large that it never matters: as if there were no constraint."""

    alpha = (50.0,)


class Physics(LeastSquares):
    """A curve through noisy points that obeys u' = -u up to a small residual: a linear PINN."""

    alpha, rate = (1e-2,), 0.1

    def __init__(self) -> None:
        g = seeded(13)
        t = torch.linspace(0, 1, 40, dtype=torch.float64)
        k = torch.arange(6, dtype=torch.float64)
        angle = torch.acos((2 * t - 1).clamp(-0.999, 0.999))[:, None]  # Chebyshev polynomials
        basis, slope = torch.cos(k * angle), 2 * k * torch.sin(k * angle) / torch.sin(angle)
        basis, slope = basis / (1 + k), slope / (1 + k)
        noisy = torch.exp(-t) + 0.4 * t * (1 - t) + 0.05 * normal(g, 40)
        self.data = (basis, noisy, slope + basis)
        self.start = torch.zeros(6, dtype=torch.float64)

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        return (data[2] @ theta).square().mean()[None]


class GroupLosses(LeastSquares):
    """The best mean fit with a bound on each of four groups' losses; two of them act."""

    sense, alpha, rate = ("<=",) * 4, (1.9, 1.9, 1.9, 1.9), 0.1

    def __init__(self) -> None:
        g = seeded(14)
        size = torch.tensor([200, 60, 30, 110])
        group = torch.repeat_interleave(torch.arange(4), size)
        truth = normal(g, 6) + 0.6 * normal(g, 4, 6)
        x = normal(g, 400, 6)
        y = (x * truth[group]).sum(1) + 0.2 * normal(g, 400)
        member = torch.nn.functional.one_hot(group, 4).double()
        self.data = (x, y, member / member.mean(0))
        self.start = torch.zeros(6, dtype=torch.float64)

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        x, y, member = data
        return ((x @ theta - y).square()[:, None] * member).mean(0)
