"""A small network that knows 64 answers and has to forget sixteen of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.studies.auto.problem import Data, Problem, normal, seeded


class Forget(Problem):
    """Keep 48 answers, with a cross-entropy of at least two on the sixteen others.

    The network is wide enough for both: the objective's infimum is 0.
    """

    sense, alpha, rate, lower_bound = (">=",), (2.0,), 0.05, 0.0

    def __init__(self) -> None:
        g = seeded(15)
        x = normal(g, 64, 16)
        y = torch.randint(4, (64,), generator=g)
        theta = 0.2 * normal(g, 1348)
        theta[1088:1344] *= 0.5
        theta.requires_grad_()
        optimizer = torch.optim.AdamW([theta], lr=1e-2)
        for _ in range(200):
            functional.cross_entropy(self.scores(theta, x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        self.start = theta.detach()
        self.data = (x, nn.functional.one_hot(y, 4).double())

    def scores(self, theta: Tensor, x: Tensor) -> Tensor:
        hidden = torch.tanh(x @ theta[:1024].reshape(16, 64) + theta[1024:1088])
        return hidden @ theta[1088:1344].reshape(64, 4) + theta[1344:]

    def loss(self, theta: Tensor, data: Data, rows: slice) -> Tensor:
        scores, wanted = self.scores(theta, data[0][rows]), data[1][rows]
        return -(torch.log_softmax(scores, 1) * wanted).sum(1).mean()

    def objective(self, theta: Tensor, data: Data) -> Tensor:
        return self.loss(theta, data, slice(48))

    def measure(self, theta: Tensor, data: Data) -> Tensor:
        return self.loss(theta, data, slice(48, 64))[None]
