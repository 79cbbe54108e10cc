"""A `step` that somebody has replaced is the one that is taken, with or without a scheduler."""

import functools
import types
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from torch_alm import SAM


def bound_before_the_scheduler(base: Optimizer, counted: Any) -> None:
    def step(self: Optimizer, closure: None = None) -> Any:
        return counted(lambda: type(self).step(self, closure))

    base.step = types.MethodType(step, base)  # type: ignore[method-assign]
    LambdaLR(base, lambda _: 1.0)


def wrapped_after_the_scheduler(base: Optimizer, counted: Any) -> None:
    LambdaLR(base, lambda _: 1.0)
    before = base.step

    @functools.wraps(before)  # copies the scheduler's mark
    def step(*args: Any, **kwargs: Any) -> Any:
        return counted(lambda: before(*args, **kwargs))

    base.step = step  # type: ignore[method-assign]


@pytest.mark.parametrize("patch", [bound_before_the_scheduler, wrapped_after_the_scheduler])
def test_a_patch_of_step_is_taken_next_to_a_schedulers(patch: Any) -> None:
    theta = nn.Parameter(torch.ones(2, dtype=torch.float64))
    base, calls = SGD([theta], lr=0.1), list[str]()

    def counted(step: Any) -> Any:
        calls.append("step")
        return step()

    patch(base, counted)
    optimizer = SAM(base)
    for _ in range(2):
        optimizer.backward(lambda: theta.sum())
        optimizer.step()
        optimizer.zero_grad()
    assert calls == ["step", "step"]
    torch.testing.assert_close(theta.detach(), torch.full_like(theta, 0.8).detach())
