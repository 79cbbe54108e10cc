"""A DualOptimizer that is set otherwise later, or has sides with modes."""

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

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


@pytest.mark.filterwarnings("ignore:DualOptimizer.step")
@pytest.mark.parametrize("wrapped", [False, True])
def test_schedules_of_both_sides_go_on_after_a_step_without_a_backward(wrapped: bool) -> None:
    theta = nn.Parameter(torch.ones(2))
    sides = [SGD([theta], lr=0.1), SGD([theta], lr=0.1)]
    sides = [SAM(sides[0]), ReverseSAM(sides[1])] if wrapped else sides
    optimizer = DualOptimizer(*sides)
    schedulers = [LambdaLR(side, lambda epoch: 0.5**epoch) for side in sides]
    optimizer.step()
    for scheduler in schedulers:
        scheduler.step()  # torch warns of a scheduler that goes before its optimizer
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.05]
