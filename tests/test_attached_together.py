"""Attached constraints and the step they follow: both are taken, or neither."""

import gc
import math
import signal
from collections.abc import Iterator
from itertools import count
from traceback import walk_tb
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import SGD, Optimizer
from torch.optim import optimizer as torch_optimizer

from tests.test_interrupts import Interrupter, Signalling
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


@pytest.fixture
def nothing_collected() -> Iterator[None]:
    """Or what an earlier test left is finalised under the trace."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("nothing_collected")
@pytest.mark.parametrize("name", ["SAM", "Dual"])
def test_an_interrupt_at_any_line_of_a_step_takes_the_attached_step_with_it(name: str) -> None:
    alive, outcomes = [], set[bool]()
    others = torch_optimizer._global_optimizer_post_hooks
    for at in count():
        theta, optimizer, constraint = attached(name)
        alive.append((theta, optimizer, constraint))
        interrupter = Interrupter(at)
        try:
            interrupter.watch(optimizer.step)
            break  # the step has no more lines
        except KeyboardInterrupt as stopped:
            frames = [frame.f_code.co_name for frame, _ in walk_tb(stopped.__traceback__)]
        others.clear()  # or all constraints so far would hear every later step, at lines of ours
        has_moved = theta[0].item() == 0.0
        if "_after_step" not in frames:  # else torch ran the hook, and that was interrupted
            assert constraint.metrics()["steps"] == has_moved, interrupter.lines[at]
        outcomes.add(has_moved)
    assert outcomes == {True, False}


def test_a_signal_in_the_base_step_waits_for_the_attached_step() -> None:
    theta = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = SAM(Signalling(theta, lr=1.0), rho=0.1)
    constraint = ALMConstraint(None, alpha=1.0, mu=0.5)
    constraint.attach(optimizer)
    optimizer.backward(lambda: sum(p.sum() for p in theta))
    constraint.observe(0.0)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert constraint.multiplier == 0.5 and theta[1][0].item() == 0.0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


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
