"""Attached constraints and the step they follow: both are taken, or neither."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import SGD, Optimizer

from torch_alm import SAM, ALMConstraint, ConstraintGroup, DualOptimizer


def attached(name: str) -> tuple[nn.Parameter, Any, ALMConstraint]:
    theta = nn.Parameter(torch.ones(2))
    optimizer: Optimizer = SGD([theta], lr=1.0)
    if name == "SAM":
        optimizer = SAM(optimizer, rho=0.1)
        optimizer.backward(lambda: theta.sum())
    else:
        sides = [optimizer, SGD([theta], lr=0.0)]
        optimizer = DualOptimizer(*sides, ALMConstraint(None, alpha=9.0, mu=1.0))
        optimizer.backward(retain=lambda: theta.sum(), forget=lambda: theta.sum())
    constraint = ALMConstraint(None, alpha=1.0, mu=0.5)
    constraint.attach(optimizer)
    constraint.observe(0.0)
    return theta, optimizer, constraint


@pytest.mark.parametrize("scaled", [False, True])
def test_a_group_that_is_attached_steps_all_its_members_or_none(scaled: bool) -> None:
    theta = nn.Parameter(torch.ones(2))
    optimizer = SGD([theta], lr=1.0)
    group = ConstraintGroup(
        {name: ALMConstraint(None, alpha=1.0, mu=0.5, nonfinite="raise") for name in "abc"}
    )
    handle = group.attach(optimizer)
    scaler = GradScaler("cpu", init_scale=4.0)

    def step(values: dict[str, float]) -> None:
        loss = theta.sum()
        (scaler.scale(loss) if scaled else loss).backward()
        group.observe(values)
        scaler.step(optimizer) if scaled else optimizer.step()
        scaler.update() if scaled else None
        optimizer.zero_grad()

    step({"a": 0.0, "b": 0.5})  # what is due steps, the rest waits
    assert [group[name].multiplier for name in "abc"] == [0.5, 0.25, 0.0]
    with pytest.raises(FloatingPointError):
        step({"a": 0.0, "b": math.nan, "c": 0.0})
    assert [group[name].multiplier for name in "abc"] == [0.5, 0.25, 0.0]
    assert [group[name].observed for name in "abc"] == [0, 0, 0]
    optimizer.zero_grad()
    if scaled:
        scaler.update()  # which the step that raised has not come to
    step({"a": 1.0, "b": 1.0, "c": 0.0})
    assert [group[name].multiplier for name in "abc"] == [0.5, 0.25, 0.5]
    handle.remove()
    step({"a": 0.0})
    assert group["a"].multiplier == 0.5 and group["a"].observed == 1
