"""Recall (Neyman-Pearson): find nine in ten, with few false alarms."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from benchmarks.studies.constrained.trace import Trace
from torch_alm import ALMConstraint


def data() -> tuple[Tensor, Tensor]:
    """Measurements of 900 healthy and 100 faulty parts."""
    torch.manual_seed(1)
    healthy = torch.randn(900, 4)
    faulty = 1.2 * torch.randn(100, 4) + torch.tensor([1.5, 1.0, 0.0, 0.0])
    return healthy, faulty


def train() -> Trace:
    """Penalise false alarms; hold the mean score of faulty parts at 0.9."""
    healthy, faulty = data()
    model = torch.nn.Linear(4, 1)
    constraint = ALMConstraint(
        lambda: model(faulty).sigmoid().mean(), alpha=0.9, mu="auto"
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-2)
    constraint.attach(optimizer)
    trace = Trace({"recall": constraint})
    for _ in range(1000):
        optimizer.zero_grad()
        loss = softplus(model(healthy)).mean()
        (loss + constraint()).backward()
        optimizer.step()
        trace.note(loss)
    return trace
