"""The multiplier's ways: a fixed mu, and the rule that finds its own."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.studies.auto.engine import Part
from benchmarks.studies.auto.rule import AutoRate, Sums, response, sums


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

    def before_step(self, part: Part) -> None: ...

    def after_step(self) -> None:
        self.step += 1
        if self.step % self.every == 0:
            self.multiplier = self.weight


class Auto:
    """The rule of `rule.py`, one multiplier per copy and constraint."""

    def begin(self, part: Part) -> None:
        equal = torch.tensor([sense == "==" for sense in part.problem.sense])
        self.rule = AutoRate(equal, torch.Size((part.rows, len(equal))))

    def loss(self, c: Tensor) -> Tensor:
        return (self.rule.see(c.detach()).to(c.dtype) * c).sum()

    def before_step(self, part: Part) -> None:
        if self.rule.wants_gradient:
            with torch.no_grad():
                self.calibrate(part)

    def calibrate(self, part: Part) -> None:
        rows = (part.rows // part.copies, part.copies)
        a, weight = part.constraint_gradients().unflatten(0, rows), self.rule.weight[..., None]
        gains: list[Tensor] = []
        norms: list[Sums] = []
        cells = zip(a, weight.unflatten(0, rows), part.steps(), strict=True)
        for each, acting, (gradient, step) in cells:
            root = None if step.root is None else step.root[:, None]
            norms.append(sums(each, gradient[:, None], acting))
            balance = norms[-1].balance[..., None]
            gains.append(
                response(each, gradient[:, None], acting, step._replace(root=root), balance)
            )
        found = Sums(*(torch.cat(part) for part in zip(*norms, strict=True)))
        self.rule.calibrate(found, torch.cat(gains))

    def after_step(self) -> None:
        self.rule.advance()
