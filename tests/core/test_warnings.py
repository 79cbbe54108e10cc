"""A warning of an optimizer points at the line of the loop that it is about."""

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import SGD

from torch_alm import SAM, DualOptimizer


def assert_points_at(found: list, function: Callable, line: str) -> None:
    lines, first = inspect.getsourcelines(function)
    (call,) = (first + i for i, text in enumerate(lines) if text.strip() == line)
    assert [(w.filename, w.lineno) for w in found] == [(__file__, call)]


def dual() -> tuple[DualOptimizer, nn.Parameter]:
    theta = nn.Parameter(torch.ones(2))
    return DualOptimizer(SGD([theta], lr=0.1), SGD([theta], lr=0.1)), theta


@pytest.mark.parametrize("kind", ["SAM", "DualOptimizer"])
def test_of_a_plain_step(kind: str) -> None:
    optimizer, theta = dual()
    if kind == "SAM":
        optimizer = SAM(optimizer.retain)
    theta.grad = torch.ones(2)
    with pytest.warns(UserWarning, match="plain SGD step") as found:
        optimizer.step()
    assert_points_at(found, test_of_a_plain_step, "optimizer.step()")


def test_of_a_forget_gradient_that_is_not_finite() -> None:
    optimizer, theta = dual()
    optimizer.backward(retain=lambda: theta.sum(), forget=lambda: theta.sum() * float("inf"))
    with pytest.warns(UserWarning, match="not finite") as found:
        optimizer.step()
    assert_points_at(found, test_of_a_forget_gradient_that_is_not_finite, "optimizer.step()")


def test_of_weights_that_swallow_the_perturbation() -> None:
    theta = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = SAM(SGD([theta], lr=0.1), rho=1e-4)
    with pytest.warns(UserWarning, match="swallows the perturbation") as found:
        optimizer.backward(lambda: theta.sum())
    call = "optimizer.backward(lambda: theta.sum())"
    assert_points_at(found, test_of_weights_that_swallow_the_perturbation, call)
