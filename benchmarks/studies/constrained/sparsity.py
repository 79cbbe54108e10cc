"""Sparsity: keep at most four inputs in expectation (expected L0)."""

import torch
from torch import Tensor

from benchmarks.studies.constrained.trace import Trace
from torch_alm import ALMConstraint


def data() -> tuple[Tensor, Tensor]:
    """A target that depends on four of twelve inputs, weakly on the rest."""
    torch.manual_seed(3)
    x = torch.randn(200, 12) @ (torch.eye(12) + 0.2 * torch.randn(12, 12))
    slope = torch.tensor([3.0, -2.0, 1.5, 1.0] + [0.1] * 8)
    return x, x @ slope + 0.1 * torch.randn(200)


def train() -> Trace:
    """Open each input with probability p, and bound the sum of the p."""
    x, y = data()
    slope = torch.zeros(12, requires_grad=True)
    gates = torch.zeros(12, requires_grad=True)
    constraint = ALMConstraint(
        lambda: gates.sigmoid().sum(), alpha=4.0, mu="auto", sense="<="
    )
    optimizer = torch.optim.Adam([slope, gates], lr=0.3)
    constraint.attach(optimizer)
    trace = Trace({"inputs": constraint})
    for _ in range(1000):
        optimizer.zero_grad()
        p = gates.sigmoid()
        error = (y - x @ (p * slope)).square().mean()
        spread = (p * (1 - p) * slope.square() * x.square().mean(0)).sum()
        (error + spread + constraint()).backward()  # the mean over all gates
        optimizer.step()
        trace.note(error + spread)
    return trace
