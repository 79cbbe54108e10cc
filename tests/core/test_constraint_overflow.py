"""lambda and the weight stay finite: what would make them infinite is left out and said aloud."""

import math
import warnings
from typing import Any

import pytest
import torch

from torch_alm import ALMConstraint
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
    "given",
    [{}, {"filter": Mean(3, deadband=1.0)}, {"filter": EMA(0.5)}, {"every": 2}],
    ids=str,
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
    for given in ({}, {"filter": Mean(3)}):
        c = ALMConstraint(None, 0.0, 1e308, nonfinite="raise", multiplier=1.0, **given)
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
