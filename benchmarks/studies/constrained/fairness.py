"""A fairness gap: two groups may differ by at most 0.05 in their mean score."""

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.studies.constrained.trace import Trace
from torch_alm import ALMConstraint


def data() -> tuple[Tensor, Tensor, Tensor]:
    """Applicants, what became of them, and the group they belong to."""
    torch.manual_seed(0)
    group = torch.rand(400) < 0.5
    x = torch.randn(400, 5) + group[:, None] * torch.tensor(
        [1.5, 0.5, 0.0, 0.0, 0.0]
    )
    label = (x[:, 0] + x[:, 2] + 0.3 * torch.randn(400) > 0.7).float()
    return x, label, group


def train() -> Trace:
    """Fit a logistic model under demographic parity."""
    x, label, group = data()
    model = torch.nn.Linear(5, 1)

    def gap() -> Tensor:
        score = model(x).squeeze(1).sigmoid()
        return (score[group].mean() - score[~group].mean()).abs()

    constraint = ALMConstraint(gap, alpha=0.05, mu="auto", sense="<=")
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    constraint.attach(optimizer)
    trace = Trace({"gap": constraint})
    for _ in range(1000):
        optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(model(x).squeeze(1), label)
        (loss + constraint()).backward()
        optimizer.step()
        trace.note(loss)
    return trace
