"""A constraint in the loss goes on from a distributed checkpoint as if it had never stopped."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from tests.core.resuming import model, notes_ignored, theta
from tests.core.table import assert_same
from torch_alm import ALMConstraint, ConstraintGroup
from torch_alm.checkpoint import ConstraintState
from torch_alm.filters import EMA, Mean
from torch_alm.rules import Hold, PenaltyGrowth


def mean(values: Tensor) -> Tensor:
    return values.mean()


def each(values: Tensor) -> Tensor:
    return values


KINDS: dict[str, Any] = {
    "plain": lambda: ALMConstraint(mean, alpha=0.6, mu=1.0, multiplier=0.5),
    "of tensors": lambda: ALMConstraint(each, alpha=torch.tensor([0.6, 0.2]), mu=1.0),
    "auto": lambda: ALMConstraint(mean, alpha=0.6, mu="auto"),
    "auto of tensors": lambda: ALMConstraint(each, alpha=torch.tensor([0.6, 0.2]), mu="auto"),
    "with all it may keep": lambda: ALMConstraint(
        each,
        alpha=torch.tensor([0.6, 0.2]),
        mu=1.0,
        every=2,
        filter=Mean(3),
        rules=[Hold(0.5), PenaltyGrowth(2.0, limit=8.0)],
    ),
    "a group": lambda: ConstraintGroup(
        {
            "a": ALMConstraint(mean, 0.6, 1.0),
            "b": ALMConstraint(torch.max, 0.1, 1.0, filter=EMA(0.5)),
        }
    ),
}


def in_the_loss(net: nn.Module, optimizer: Optimizer, constraint: Any, steps: range) -> list[Any]:
    """Train with the constraint in the loss; what it said at each step."""
    said = []
    for step in steps:
        outputs = net(torch.ones(2, 4) * step)
        (outputs.abs().mean() + constraint(outputs.square().mean(0)[:2])).backward()
        optimizer.step()
        optimizer.zero_grad()
        said.append(constraint.metrics())
    return said


@pytest.mark.parametrize("kind", KINDS)
def test_a_constraint_in_the_loss_goes_on_from_a_distributed_checkpoint(
    kind: str, tmp_path: Path
) -> None:
    net, constraint = model(), KINDS[kind]()
    optimizer = SGD(net.parameters(), lr=0.1)
    constraint.attach(optimizer)
    in_the_loss(net, optimizer, constraint, range(5))
    other, fresh = model(), KINDS[kind]()
    other.load_state_dict(net.state_dict())
    second = SGD(other.parameters(), lr=0.1)
    fresh.attach(second)
    with notes_ignored():
        dcp.save({"constraint": ConstraintState(constraint)}, checkpoint_id=tmp_path)
        dcp.load({"constraint": ConstraintState(fresh)}, checkpoint_id=tmp_path)
    assert_same(fresh.state_dict(), constraint.state_dict())
    went_on = in_the_loss(net, optimizer, constraint, range(5, 10))
    assert_same(in_the_loss(other, second, fresh, range(5, 10)), went_on)
    assert torch.equal(theta(other), theta(net))


def test_another_constraints_distributed_checkpoint_is_refused(tmp_path: Path) -> None:
    constraint, fresh = KINDS["plain"](), KINDS["of tensors"]()
    before = copy.deepcopy(fresh.state_dict())
    with notes_ignored(), pytest.raises(Exception, match="Is it another constraint"):
        dcp.save({"constraint": ConstraintState(constraint)}, checkpoint_id=tmp_path)
        dcp.load({"constraint": ConstraintState(fresh)}, checkpoint_id=tmp_path)
    assert_same(fresh.state_dict(), before)
