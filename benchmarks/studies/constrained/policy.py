"""A policy near a reference: a KL divergence of at most 0.1 nats."""

import torch
from torch import Tensor

from benchmarks.studies.constrained.trace import Trace
from torch_alm import ALMConstraint


def data() -> tuple[Tensor, Tensor]:
    """Rewards of twenty actions, and log-probabilities of the reference."""
    torch.manual_seed(4)
    return 3 * torch.randn(20), torch.randn(20).log_softmax(0)


def train() -> Trace:
    """Maximise the expected reward within the KL ball around the reference."""
    reward, reference = data()
    logits = reference.clone().requires_grad_()

    def divergence() -> Tensor:
        log_p = logits.log_softmax(0)
        return (log_p.exp() * (log_p - reference)).sum()

    constraint = ALMConstraint(divergence, alpha=0.1, mu="auto", sense="<=")
    optimizer = torch.optim.Adam([logits], lr=2e-2)
    constraint.attach(optimizer)
    trace = Trace({"KL": constraint})
    for _ in range(1000):
        optimizer.zero_grad()
        loss = -(logits.softmax(0) * reward).sum()
        (loss + constraint()).backward()
        optimizer.step()
        trace.note(loss)
    return trace
