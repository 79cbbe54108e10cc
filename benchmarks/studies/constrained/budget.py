"""A budget: spread 30,000 GPU hours over experiments of different cost."""

import torch
from torch import Tensor

from benchmarks.studies.constrained.trace import Trace
from torch_alm import ALMConstraint


def data() -> tuple[Tensor, Tensor]:
    """Weight of the error, and hours per run, of twenty experiments."""
    torch.manual_seed(2)
    return 1 + 9 * torch.rand(20), 10 + 190 * torch.rand(20)


def train() -> Trace:
    """Choose each number of runs n, where the error is weight / n."""
    weight, hours = data()
    log_runs = torch.zeros(20, requires_grad=True)
    constraint = ALMConstraint(
        lambda: (hours * log_runs.exp()).sum(),
        alpha=30_000.0,
        mu="auto",
        sense="<=",
    )
    optimizer = torch.optim.Adam([log_runs], lr=4e-2)
    constraint.attach(optimizer)
    trace = Trace({"hours": constraint})
    for _ in range(1000):
        optimizer.zero_grad()
        loss = (weight / log_runs.exp()).sum()
        (loss + constraint()).backward()
        optimizer.step()
        trace.note(loss)
    return trace
