"""Several at once: a fair classifier, with enough recall, of small weights."""

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.studies.constrained.fairness import data
from benchmarks.studies.constrained.trace import Trace
from torch_alm import ALMConstraint, ConstraintGroup


def train() -> Trace:
    """Fit a logistic model under three constraints, a multiplier for each."""
    x, label, group = data()
    model = torch.nn.Linear(5, 1)

    def score() -> Tensor:
        return model(x).squeeze(1).sigmoid()

    def gap() -> Tensor:
        return (score()[group].mean() - score()[~group].mean()).abs()

    def recall() -> Tensor:
        return (score() * label).sum() / label.sum()

    def squares() -> Tensor:
        return model.weight.square().sum()

    constraints = ConstraintGroup(
        {
            "gap": ALMConstraint(gap, alpha=0.05, mu="auto", sense="<="),
            "recall": ALMConstraint(recall, alpha=0.75, mu="auto"),
            "squares": ALMConstraint(squares, alpha=2.0, mu="auto", sense="<="),
        }
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    constraints.attach(optimizer)
    trace = Trace(constraints)
    for _ in range(1000):
        optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(model(x).squeeze(1), label)
        (loss + constraints()).backward()
        optimizer.step()
        trace.note(loss)
    return trace
