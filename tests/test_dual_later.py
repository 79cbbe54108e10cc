"""A DualOptimizer whose side fails, shares a base, or is set otherwise later: nothing is torn."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau

from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM


class FailsOnce(SGD):
    """Out of memory in its first step, say."""

    has_failed = False

    def step(self, closure: Any = None) -> Any:
        if not self.has_failed:
            self.has_failed = True
            raise MemoryError
        return super().step(closure)


def fails_in_a_hook(theta: nn.Parameter) -> SGD:
    side, left = SGD([theta], lr=0.1), [MemoryError()]

    def hook(*_: Any) -> None:
        if left:
            raise left.pop()

    side.register_step_pre_hook(hook)
    return side


def backward(optimizer: DualOptimizer, theta: nn.Parameter) -> None:
    optimizer.backward(retain=lambda: theta.square().sum(), forget=lambda: theta.sum())


@pytest.mark.parametrize("scale", ["gradient", "step"])
@pytest.mark.parametrize("failing", [lambda theta: FailsOnce([theta], lr=0.1), fails_in_a_hook])
def test_a_forget_step_that_fails_leaves_the_multiplier(failing: Any, scale: Any) -> None:
    """Tried again, the step is the one that would have been taken without the failure."""
    thetas = [nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2)]
    first, second = (
        DualOptimizer(
            SGD([theta], lr=0.1), forget, ALMConstraint(None, alpha=5.0, mu=1.0), scale=scale
        )
        for theta, forget in zip(
            thetas, (failing(thetas[0]), SGD([thetas[1]], lr=0.1)), strict=True
        )
    )
    backward(first, thetas[0])
    with pytest.raises(MemoryError):
        first.step()
    assert first.constraint.multiplier == 0.0
    assert torch.equal(thetas[0].grad, torch.full_like(thetas[0], 2.0))  # the retain side's
    first.zero_grad()
    for optimizer, theta in zip((first, second), thetas, strict=True):
        backward(optimizer, theta)
        optimizer.step()
    assert first.constraint.multiplier == second.constraint.multiplier == 3.0
    assert torch.equal(*thetas)


def test_a_step_on_transposed_weights_is_refused_before_anything_moves() -> None:
    """Each of the two would multiply the move of the one memory."""
    theta = nn.Parameter(torch.ones(4, 3))
    sides = [SGD([theta, nn.Parameter(theta.detach().t())], lr=0.1) for _ in range(2)]
    constraint = ALMConstraint(None, alpha=0.0, mu=0.1, multiplier=3.0)
    both = sides[0].param_groups[0]["params"]
    sides[1].param_groups[0]["params"] = both
    optimizer = DualOptimizer(*sides, constraint, scale="step")
    optimizer.backward(
        retain=lambda: both[0].sum() + both[1].sum(), forget=lambda: both[0].sum() + both[1].sum()
    )
    with pytest.raises(ValueError, match="partly in the same memory"):
        optimizer.step()
    assert torch.equal(theta.detach(), torch.ones(4, 3))
    assert constraint.multiplier == 3.0


def test_the_scale_is_checked_whenever_it_is_set() -> None:
    theta = nn.Parameter(torch.ones(2))
    optimizer = DualOptimizer(SGD([theta], lr=0.1), SGD([theta], lr=0.1))
    with pytest.raises(ValueError, match="scale is 'Step'"):
        optimizer.scale = "Step"  # type: ignore[assignment]
    assert optimizer.scale == "gradient"
    optimizer.scale = "step"
    assert optimizer.scale == "step"


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


@pytest.mark.parametrize("value", [float("nan"), 2.5, "2", 0])
def test_a_cadence_is_a_whole_number_of_steps(value: Any) -> None:
    theta = nn.Parameter(torch.ones(2))
    optimizer = DualOptimizer(SGD([theta], lr=0.1), SGD([theta], lr=0.1))
    with pytest.raises(ValueError, match="probe_every is"):
        optimizer.probe_every = value
    with pytest.raises(ValueError, match="probe_every is"):
        DualOptimizer(optimizer.retain, optimizer.forget, probe_every=value)


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


def test_a_base_that_both_sides_share_has_its_groups_once() -> None:
    theta, more = (nn.Parameter(torch.ones(2)) for _ in range(2))
    base = SGD([theta], lr=1.0)
    optimizer = DualOptimizer(SAM(base, rho=0.1), ReverseSAM(base, rho=0.1))
    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    for _ in range(2):
        scheduler.step(1.0)
    assert base.param_groups[0]["lr"] == 0.5
    optimizer.add_param_group({"params": [more]})
    assert [group["params"] for group in base.param_groups] == [[theta], [more]]
    assert optimizer.param_groups == base.param_groups
