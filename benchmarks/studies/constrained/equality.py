"""An equality: the most random die that shows 4.5 on average (Jaynes)."""

import torch

from benchmarks.studies.constrained.trace import Trace
from torch_alm import ALMConstraint

FACES = torch.arange(1.0, 7.0)


def train() -> Trace:
    """Maximise the entropy of six probabilities with a given mean."""
    logits = torch.zeros(6, requires_grad=True)
    constraint = ALMConstraint(
        lambda: logits.softmax(0) @ FACES, alpha=4.5, mu="auto", sense="=="
    )
    optimizer = torch.optim.SGD([logits], lr=0.1)
    constraint.attach(optimizer)
    trace = Trace({"mean": constraint})
    for _ in range(1000):
        optimizer.zero_grad()
        loss = (logits.softmax(0) * logits.log_softmax(0)).sum()
        (loss + constraint()).backward()
        optimizer.step()
        trace.note(loss)
    return trace
