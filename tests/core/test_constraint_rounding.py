"""A measurement that equals alpha in its own type is met; what overflows never reaches lambda."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import SGD

from torch_alm import ALMConstraint, DualOptimizer
from torch_alm.filters import EMA, Mean

thorough = settings(max_examples=30, derandomize=True, deadline=None)
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
SENSES = [">=", "<=", "=="]
ALPHAS = st.floats(1e-3, 1e3, allow_nan=False)


@thorough
@given(
    ALPHAS,
    st.sampled_from(TYPES),
    st.sampled_from(SENSES),
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=5),
    st.sampled_from(
        [{}, {"filter": Mean(3, deadband=0.5)}, {"filter": EMA(0.5)}, {"filter": Mean(2)}]
    ),
)
def test_what_equals_alpha_in_its_own_type_is_no_violation(
    alpha: float, dtype: torch.dtype, sense: Any, weights: list[float], given: dict[str, Any]
) -> None:
    value = torch.tensor(alpha, dtype=torch.float64).to(dtype)
    for vector in (False, True):
        level = torch.full((2,), alpha, dtype=torch.float64) if vector else alpha
        c = ALMConstraint(lambda v: v, level, 1.0, sense=sense, **given)
        for _ in range(3):
            for weight in weights:
                c.observe(value.expand(2) if vector else value, weight=weight)
            weight = c.step()
            assert not torch.as_tensor(weight).any() and c.metrics()["violation"] == 0.0
        assert c.metrics()["status"] == "never_active"
        leaf = (value.expand(2).clone() if vector else value.clone()).requires_grad_()
        penalties = c(leaf), c.penalty(leaf)
        for penalty in penalties:
            assert penalty.item() == 0.0
            assert not torch.autograd.grad(penalty, leaf)[0].any()


@pytest.mark.parametrize("kind", [np.float32, np.float16, lambda v: np.array(v, np.float32)])
@pytest.mark.parametrize("sense", SENSES)
def test_numbers_of_numpy_are_compared_in_their_own_type(kind: Any, sense: Any) -> None:
    c = ALMConstraint(None, 0.7, 1.0, sense=sense)
    c.observe(kind(0.7))
    assert c.step() == 0.0 and c.metrics()["status"] == "never_active"


@thorough
@given(ALPHAS, ALPHAS, st.sampled_from(TYPES), st.sampled_from(SENSES))
def test_the_penalty_and_the_controller_see_one_violation(
    alpha: float, value: float, dtype: torch.dtype, sense: Any
) -> None:
    c = ALMConstraint(lambda v: v, alpha, 0.5, sense=sense, multiplier=0.25)
    leaf = torch.tensor(value, dtype=torch.float64).to(dtype).requires_grad_()
    gradients = [torch.autograd.grad(p, leaf)[0].item() for p in (c.penalty(leaf), c(leaf))]
    weight = c.step() * (1 if sense == "<=" else -1)
    assert gradients == pytest.approx([weight] * 2, rel=2.0**-8, abs=1e-4)


def test_a_penalty_in_half_precision_does_not_round_alpha() -> None:
    c = ALMConstraint(None, 100.3, 1.0)
    leaf = torch.tensor(99.5, dtype=torch.bfloat16, requires_grad=True)
    (gradient,) = torch.autograd.grad(c.penalty(leaf), leaf)
    c.observe(leaf)
    assert -gradient.item() == pytest.approx(c.step(), rel=2.0**-8)


@thorough
@given(ALPHAS, ALPHAS, st.sampled_from(TYPES))
def test_a_value_that_is_enough_before_it_is_rounded_is_enough_after(
    alpha: float, value: float, dtype: torch.dtype
) -> None:
    least, most = sorted((alpha, value))
    for sense, threshold, found in ((">=", least, most), ("<=", most, least)):
        c = ALMConstraint(None, threshold, 1.0, sense=sense)
        c.observe(torch.tensor(found, dtype=torch.float64).to(dtype))
        assert c.step() == 0.0


def test_an_alpha_beyond_the_range_of_the_measurement_stays_what_it_is() -> None:
    c = ALMConstraint(lambda v: v, 1e6, 1.0, sense="<=")
    leaf = torch.tensor(2.0, dtype=torch.float16, requires_grad=True)
    assert math.isfinite(c(leaf).item())
    assert c.step() == 0.0 and c.metrics()["violation"] == 2.0 - 1e6


def test_whole_numbers_do_not_round_alpha() -> None:
    for value in (torch.tensor(2), np.int64(2), 2, torch.tensor(True)):
        c = ALMConstraint(None, 2.5, 1.0)
        c.observe(value)
        assert c.step() == 2.5 - float(value)
    c = ALMConstraint(None, [2.5, 0.5], 1.0)
    c.observe(torch.tensor([2, 0]))
    assert c.step().tolist() == [0.5, 0.5]


@pytest.mark.parametrize("value", [7 / 10, np.float32(0.7), torch.tensor(0.7)], ids=repr)
@pytest.mark.parametrize("last", [True, False])
def test_a_rate_beside_the_loss_that_equals_alpha_leaves_the_gate_closed(
    value: Any, last: bool
) -> None:
    theta = torch.zeros(1, requires_grad=True)
    dual = DualOptimizer(
        SGD([theta], lr=0.1), SGD([theta], lr=0.1), ALMConstraint(None, alpha=0.7, mu=1.0)
    )
    dual.backward(retain=lambda: 0.0 * theta.sum(), forget=lambda: (theta.sum(), value), last=last)
    dual.step()
    assert theta.item() == 0.0 and dual.constraint.metrics()["status"] == "never_active"
