"""A DualOptimizer that is set otherwise later, or has sides with modes."""

import pytest
import torch
from torch import nn
from torch.optim import SGD

from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM


def backward(optimizer: DualOptimizer, theta: nn.Parameter) -> None:
    optimizer.backward(retain=lambda: theta.square().sum(), forget=lambda: theta.sum())


def test_the_cadence_of_measurements_may_be_set_later() -> None:
    theta = nn.Parameter(torch.ones(2))
    constraint = ALMConstraint(None, alpha=-5.0, mu=1.0)
    optimizer = DualOptimizer(SGD([theta], lr=0.0), SGD([theta], lr=0.0), constraint)
    optimizer.probe_every = 3
    for _ in range(7):  # the first releases; then every third
        backward(optimizer, theta)
        optimizer.step()
        optimizer.zero_grad()
    assert optimizer.probe_every == 3
    assert constraint.metrics()["steps"] == 3


def test_a_sense_that_no_longer_fits_the_forget_side_is_refused() -> None:
    theta = nn.Parameter(torch.ones(2))
    constraint = ALMConstraint(None, alpha=5.0, mu=1.0)
    optimizer = DualOptimizer(
        SGD([theta], lr=0.1), ReverseSAM(SGD([theta], lr=0.1), rho=0.1), constraint
    )
    constraint.sense = "<="
    with pytest.raises(ValueError, match="where the constraint is easiest"):
        backward(optimizer, theta)
    assert theta.grad is None
    constraint.sense = ">="
    backward(optimizer, theta)
    assert constraint.observed == 1


def test_what_evaluation_did_last_is_undone_first() -> None:
    class Modal(SGD):
        def eval(self) -> None:
            done.append(self)

        def train(self) -> None:
            assert done.pop() is self

    theta, done = nn.Parameter(torch.ones(1)), list[Modal]()
    optimizer = DualOptimizer(SAM(Modal([theta])), Modal([theta]))
    optimizer.eval()
    assert len(done) == 2
    optimizer.train()
    assert not done
