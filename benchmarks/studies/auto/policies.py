"""Distributions: a policy near another, a policy with a limit, the most even one, a code's rate."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.studies.auto.problem import Data, Problem, normal, seeded, uniform


class Kl(Problem):
    """The best reward within 0.1 nats of a reference policy: RLHF in one line."""

    alpha, rate = (0.1,), 0.05

    def __init__(self) -> None:
        g = seeded(9)
        reference = torch.log_softmax(normal(g, 20), 0)
        self.data = (3 * normal(g, 20), reference)
        self.start = reference

    def objective(self, theta: Tensor, data: Data) -> Tensor:
        return -(torch.softmax(theta, 0) * data[0]).sum()

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        log_p = torch.log_softmax(theta, 0)
        return (log_p.exp() * (log_p - data[1])).sum()[None]


class MaximumEntropy(Problem):
    """Jaynes' die: the most even distribution over ten faces whose mean is exactly 6.5."""

    sense, alpha, rate = ("==",), (6.5,), 0.3

    def __init__(self) -> None:
        self.data = (torch.arange(10, dtype=torch.float64),)
        self.start = torch.zeros(10, dtype=torch.float64)

    def objective(self, theta: Tensor, data: Data) -> Tensor:
        log_p = torch.log_softmax(theta, 0)
        return (log_p.exp() * log_p).sum()

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        return (torch.softmax(theta, 0) * data[0]).sum()[None]


class SafePolicy(Problem):
    """A Markov decision process with four states: reward, while the cost stays below its limit."""

    alpha, rate = (6.0,), 0.5

    def __init__(self) -> None:
        g = seeded(10)
        move = torch.softmax(2 * normal(g, 4, 3, 4), -1)
        reward = uniform(g, 4, 3)
        self.data = (move, reward, (0.7 * reward + 0.3 * uniform(g, 4, 3)))
        self.start = 0.1 * normal(g, 12)

    def value(self, theta: Tensor, data: Data, each: Tensor) -> Tensor:
        """The discounted sum from the first state."""
        policy = torch.softmax(theta.reshape(4, 3), -1)
        move = (policy[..., None] * data[0]).sum(1)
        eye = torch.eye(4, dtype=theta.dtype)
        return torch.linalg.solve(eye - 0.9 * move, (policy * each).sum(1))[0]

    def objective(self, theta: Tensor, data: Data) -> Tensor:
        entropy = -(torch.softmax(theta, 0) * torch.log_softmax(theta, 0)).sum()
        return -self.value(theta, data, data[1]) - 0.2 * entropy

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        return self.value(theta, data, data[2])[None]


class Rate(Problem):
    """Eight Gaussian sources in four nats: the least distortion (reverse water-filling)."""

    alpha, rate = (4.0,), 0.5

    def __init__(self) -> None:
        self.data = (torch.linspace(0.3, 3, 8, dtype=torch.float64),)
        self.start = torch.full((8,), -2.0, dtype=torch.float64)

    def objective(self, theta: Tensor, data: Data) -> Tensor:
        return (data[0] * torch.sigmoid(theta)).sum()

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        return -0.5 * torch.nn.functional.logsigmoid(theta).sum()[None]
