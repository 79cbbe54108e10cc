"""The update as a hook of the optimizer's step: once per step, and not for a step skipped."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import SGD, AdamW

from torch_alm import SAM, ALMConstraint, ConstraintGroup


class Loop:
    """One weight, a constraint on it, and an optimizer the constraint is attached to."""

    def __init__(self, make: Any = SGD, **given: Any) -> None:
        self.x = torch.zeros(1, requires_grad=True)
        self.optimizer = make([self.x], lr=0.1)
        self.constraint = ALMConstraint(lambda shift: self.x[0] + shift, alpha=1.0, mu=0.5, **given)
        self.handle = self.constraint.attach(self.optimizer)

    def loss(self, shift: float = 0.0) -> Tensor:
        return self.x.square().sum() + self.constraint(shift)

    @property
    def steps(self) -> int:
        return self.constraint.metrics()["steps"]


def test_one_update_per_step_with_accumulation() -> None:
    loop = Loop()
    for shift in (0.0, -2.0, -4.0):
        loop.loss(shift).backward()
    assert loop.steps == 0
    loop.optimizer.step()
    assert loop.steps == 1 and loop.constraint.multiplier == 0.5 * 3.0
    assert loop.constraint.observed == 0


def test_it_equals_stepping_by_hand() -> None:
    attached, by_hand = Loop(), Loop()
    by_hand.handle.remove()
    for _ in range(20):
        for loop in (attached, by_hand):
            loop.optimizer.zero_grad()
            loop.loss().backward()
            loop.optimizer.step()
        by_hand.constraint.step()
    assert attached.constraint.state_dict() == by_hand.constraint.state_dict()
    assert torch.equal(attached.x, by_hand.x) and attached.constraint.multiplier > 0


def test_removed_hooks_do_nothing() -> None:
    loop = Loop()
    loop.handle.remove()
    loop.loss().backward()
    loop.optimizer.step()
    assert loop.steps == 0 and loop.constraint.observed == 1
    assert not loop.x._backward_hooks and not loop.x._post_accumulate_grad_hooks


@pytest.mark.parametrize("clear_first", [True, False], ids=["zero_grad before", "zero_grad after"])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(
    "make", [SGD, AdamW, lambda p, lr: AdamW(p, lr=lr, fused=True)], ids=["SGD", "AdamW", "fused"]
)
def test_a_step_that_a_scaler_skips_is_none_and_moves_nothing(
    make: Any, parts: int, clear_first: bool
) -> None:
    """Fused, it is heard of and dropped; else it is averaged with the next, of the same theta."""
    loop = Loop(make)
    scaler = GradScaler("cpu", init_scale=4.0)
    values = []
    for step in range(5):
        before = loop.x.item()
        forward = loop.loss(float(step))
        if clear_first:
            loop.optimizer.zero_grad()
        for part in range(parts):
            loss = forward if part == 0 else loop.loss(float(step))
            broken = loop.x.sum() * (torch.inf if step in (0, 2) else 0.0)
            scaler.scale(loss + broken).backward()
        scaler.step(loop.optimizer)
        scaler.update()
        if not clear_first:
            loop.optimizer.zero_grad()
        values.append(loop.constraint.metrics()["value"])
        if step in (0, 2):
            assert loop.x.item() == before
        else:
            is_averaged = step in (1, 3) and not loop.optimizer.defaults.get("fused")
            assert values[-1] == pytest.approx(before + step - 0.5 * is_averaged)
    assert loop.steps == 3 and values[1] == values[2]


def test_a_sam_step_that_a_scaler_skips_leaves_no_trace() -> None:
    loop = Loop(lambda p, lr: SAM(SGD(p, lr=lr), rho=0.0))
    scaler = GradScaler("cpu", init_scale=4.0)
    loop.optimizer.backward_fn = lambda loss: scaler.scale(loss).backward()
    for step in range(3):
        shift, factor = float(step), torch.inf if step == 1 else 0.0
        for _ in range(2):
            loop.optimizer.backward(lambda s=shift, f=factor: loop.loss(s) + loop.x.sum() * f)
        before = loop.x.item()
        scaler.step(loop.optimizer)
        scaler.update()
        loop.optimizer.zero_grad()
        if step != 1:
            assert loop.constraint.metrics()["value"] == pytest.approx(before + step)
        assert loop.steps == (1, 1, 2)[step]


def test_micro_batches_under_sam_are_not_taken_for_skipped_steps() -> None:
    loop = Loop(lambda p, lr: SAM(SGD(p, lr=lr), rho=0.01))
    for shift in (0.0, -2.0, -4.0):
        loop.optimizer.backward(lambda s=shift: loop.loss(s))
    assert loop.constraint.observed == 3
    loop.optimizer.step()
    assert loop.steps == 1


def test_something_that_is_no_optimizer_is_named() -> None:
    with pytest.raises(TypeError, match=r"attach takes a torch.optim.Optimizer and found Linear"):
        ALMConstraint(None, 1.0, 1.0).attach(torch.nn.Linear(1, 1))


def test_a_group_attaches_as_one() -> None:
    x = torch.zeros(1, requires_grad=True)
    optimizer = SGD([x], lr=0.1)
    group = ConstraintGroup(
        {"a": ALMConstraint(None, 1.0, 0.5), "b": ALMConstraint(None, 2.0, 0.5)}
    )
    handle = group.attach(optimizer)
    group.observe({"a": 0.0, "b": 0.0})
    optimizer.step()
    assert [c.multiplier for c in group.values()] == [0.5, 1.0]
    handle.remove()
    group.observe({"a": 0.0, "b": 0.0})
    optimizer.step()
    assert [c.observed for c in group.values()] == [1, 1]
