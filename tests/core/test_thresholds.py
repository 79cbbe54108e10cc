"""Thresholds from held-out data and from a wanted rate."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import isotonic_regression

from torch_alm.thresholds import level_of, loss_for_rate


def test_a_level_is_a_mean_with_its_standard_error() -> None:
    values = [1.0, 2.0, 4.0, 9.0]
    x = torch.ones((), requires_grad=True)
    level = level_of(lambda v: x * v, iter(values))
    assert level.value == 4.0 and level.batches == 4
    assert level.error == pytest.approx(np.std(values, ddof=1) / 2)
    single = level_of(lambda v: x * v, [3.0])
    assert (single.value, single.batches) == (3.0, 1) and math.isnan(single.error)


def test_a_level_keeps_no_graph() -> None:
    x = torch.ones((), requires_grad=True)

    def measure(value: float) -> torch.Tensor:
        assert not (x * value).requires_grad
        return x * value

    assert level_of(measure, iter([1.0])).value == 1.0


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_a_level_of_nothing_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="level_of found"):
        level_of(torch.tensor, values)


@pytest.mark.parametrize("measured", [torch.ones(2), np.ones(2), None, "much"])
def test_a_measurement_that_is_no_number_is_named(measured: object) -> None:
    with pytest.raises(ValueError, match="level_of needs one number per batch"):
        level_of(lambda _: measured, [0])  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_the_loss_is_where_the_isotonic_fit_crosses_and_ties_are_one_point(seed: int) -> None:
    draw = np.random.default_rng(seed)
    losses = draw.integers(0, 6, 30) / 2
    rates = 0.2 * losses + draw.uniform(0, 1, 30)
    xs, members = np.unique(losses, return_inverse=True)
    sizes = np.bincount(members)
    fit = isotonic_regression(np.bincount(members, rates) / sizes, weights=sizes).x
    for rate in draw.uniform(fit[0], fit[-1], 5):
        alpha = loss_for_rate(losses, rates, rate)
        assert np.interp(alpha, xs, fit) == pytest.approx(rate, abs=1e-12)
        assert np.all(fit[xs < alpha - 1e-9] < rate), "and nothing smaller would do"


def test_repeated_losses_and_the_first_point() -> None:
    assert loss_for_rate([1.0, 1.0, 2.0], [0.25, 0.5, 0.75], 0.375) == 1.0
    assert loss_for_rate([2.0, 1.0], [0.8, 0.2], 0.5) == 1.5
    assert loss_for_rate([1.0, 2.0, 3.0], [0.5, 0.5, 0.5], 0.5) == 1.0
    assert 1.7 + (3.9 - 1.7) > 3.9, "interpolating would leave the range of the losses"
    assert loss_for_rate([1.7, 3.9], [0.2, 0.7], 0.7) == 3.9


@pytest.mark.parametrize("rate", [0.05, 0.95])
def test_a_rate_out_of_reach_says_how_far_it_went(rate: float) -> None:
    told = rf"wanted is {rate}, and the fit goes from 0\.1 at a loss of 1 to 0\.7 at 2;"
    with pytest.raises(ValueError, match=told):
        loss_for_rate([1.0, 2.0], [0.1, 0.7], rate)


@pytest.mark.parametrize(
    ("losses", "rates", "rate", "words"),
    [
        ([1.0], [0.5], 0.3, "1 pairs"),
        ([1.0, math.nan], [0.1, 0.5], 0.3, "2 pairs"),
        ([1.0, 2.0], [0.1, 0.7], math.nan, "the rate nan: all have to be finite"),
        ([1.0, 2.0], [0.5], 0.3, "argument"),
    ],
)
def test_pairs_are_checked(
    losses: list[float], rates: list[float], rate: float, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        loss_for_rate(losses, rates, rate)


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_the_order_of_pairs_does_not_matter_and_neither_does_their_type(kind: type) -> None:
    losses, rates = [2.0, 1.0, 1.0, 3.0], [0.5, 0.5, 0.0, 1.0]
    for order in (1, -1):
        found = loss_for_rate(kind(losses[::order]), kind(rates[::order]), 0.75)
        assert found == 2.5 and type(found) is float
