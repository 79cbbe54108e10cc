"""lambda and the weight stay finite: what would make them infinite is left out and said aloud."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import SGD

from torch_alm import ALMConstraint, DualOptimizer
from torch_alm.filters import EMA, Mean

LARGE = 1.7e308
SENSES = [">=", "<=", "=="]


def follow(c: ALMConstraint, values: list[Any]) -> list[str]:
    """Step once per value; the warnings, and everything finite after each step."""
    said: list[str] = []
    for value in values:
        c.observe(value)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            c.step()
        said += [str(each.message) for each in found]
        for number in (c.multiplier, c.weight):
            assert torch.as_tensor(number, dtype=torch.float64).isfinite().all()
    return said


@pytest.mark.parametrize("entries", [None, 2], ids=["number", "vector"])
@pytest.mark.parametrize("sense", SENSES)
@pytest.mark.parametrize(
    "given", [{}, {"filter": Mean(3, deadband=1.0)}, {"filter": EMA(0.5)}, {"every": 2}], ids=str
)
@pytest.mark.parametrize(("mu", "c"), [(1e308, 1.5), (1.0, LARGE), (1e300, 1e300)])
def test_lambda_stays_finite_and_goes_on(
    mu: float, c: float, given: dict[str, Any], sense: Any, entries: int | None
) -> None:
    def number(value: float) -> Any:
        value = value if sense == "<=" else -value
        return value if entries is None else torch.full((entries,), value, dtype=torch.float64)

    constraint = ALMConstraint(None, number(0.0), mu, sense=sense, **given)
    said = follow(constraint, [number(c)] * 6)
    assert len(said) == constraint.skipped > 0
    assert all("update(s) of this step are not finite" in each for each in said)
    assert constraint.metrics()["status"] in ("violated", "non_finite")
    follow(constraint, [number(-c)] * 3 + [number(-1e-3)] * 8)
    constraint.mu = 1e-3
    constraint.multiplier = 0.0
    assert follow(constraint, [number(-1.0)] * 4) == []
    met = "released" if constraint.metrics()["active_share"] else "never_active"
    assert constraint.metrics()["status"] == ("violated" if sense == "==" else met)


def test_a_number_far_outside_leaves_the_other_entries_alone() -> None:
    c = ALMConstraint(None, torch.zeros(2), 1e308)
    said = follow(c, [torch.tensor([-9.0, -1e-300], dtype=torch.float64)] * 2)
    assert len(said) == 2 and c.multiplier.tolist() == [0.0, 2e8]
    assert c.metrics()["status"] == "violated"


def test_the_difference_of_two_finite_numbers_that_overflows_is_no_measurement() -> None:
    c = ALMConstraint(None, LARGE, 1.0)
    assert "1 measurement(s) or update(s) of this step" in follow(c, [-LARGE])[0]
    assert c.metrics()["status"] == "non_finite"


def test_micro_batches_whose_sum_overflows_are_no_measurement() -> None:
    c = ALMConstraint(None, 0.0, 1.0)
    c.observe(-LARGE)
    follow(c, [-LARGE])
    assert c.metrics()["status"] == "non_finite" and math.isnan(c.metrics()["violation"])


def test_raise_refuses_an_update_that_overflows_and_changes_nothing() -> None:
    for more in ({}, {"filter": Mean(3)}):
        c = ALMConstraint(None, 0.0, 1e308, nonfinite="raise", multiplier=1.0, **more)
        before = c.state_dict()
        c.observe(-9.0)
        for verb in (c.preview, c.step):
            with pytest.raises(FloatingPointError, match="or mu too large"):
                verb()
        assert c.state_dict() == before


@pytest.mark.parametrize("given", [{}, {"filter": Mean(2)}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("entries", [(), (2,)], ids=["number", "vector"])
def test_the_gradient_of_a_huge_violation_is_the_weight_and_its_penalty_no_nan(
    entries: tuple[int, ...], dtype: torch.dtype, given: dict[str, Any]
) -> None:
    c = ALMConstraint(lambda v: v, torch.zeros(entries) if entries else 0.0, 1e-3, **given)
    leaf = torch.full(entries, -1e25 if dtype == torch.float32 else -1e200, dtype=dtype)
    leaf.requires_grad_()
    penalty = c(leaf)
    penalty.backward()
    assert not math.isnan(penalty.item())
    weight = torch.as_tensor(c.step(), dtype=torch.float64)
    torch.testing.assert_close(-leaf.grad.double(), weight, rtol=1e-6, atol=0)


thorough = settings(max_examples=30, derandomize=True, deadline=None)
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
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
