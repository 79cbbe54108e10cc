"""Thresholds from held-out data and from a wanted rate."""

import math
import random

import numpy as np
import pytest
import torch
from scipy.optimize import isotonic_regression

from torch_alm.thresholds import level_of, loss_for_rate


def test_a_level_is_a_mean_with_its_standard_error() -> None:
    values = [1.0, 2.0, 4.0, 9.0]
    x = torch.ones((), requires_grad=True)
    level = level_of(lambda v: x * v, values)
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


def test_the_calibrated_loss_is_where_the_isotonic_fit_crosses() -> None:
    noise = random.Random(0)
    losses = [noise.uniform(0.0, 5.0) for _ in range(60)]
    rates = [1 / (1 + math.exp(2 - loss)) + noise.gauss(0, 0.05) for loss in losses]
    order = np.argsort(losses)
    xs = np.array(losses)[order]
    fit = isotonic_regression(np.array(rates)[order]).x
    for rate in (0.3, 0.5, 0.7, float(fit[20]), float(fit[-1])):
        alpha = loss_for_rate(losses, rates, rate)
        assert np.interp(alpha, xs, fit) == pytest.approx(rate, abs=1e-12)
        assert np.all(fit[xs < alpha - 1e-9] < rate), "and nothing smaller would do"


def test_repeated_losses_and_the_first_point() -> None:
    assert loss_for_rate([1.0, 1.0, 2.0], [0.25, 0.5, 0.75], 0.375) == 1.0
    assert loss_for_rate([2.0, 1.0], [0.8, 0.2], 0.5) == 1.5
    assert loss_for_rate([1.0, 2.0, 3.0], [0.5, 0.5, 0.5], 0.5) == 1.0


def test_a_recorded_loss_comes_back_to_the_last_bit() -> None:
    assert 1.7 + (3.9 - 1.7) > 3.9, "interpolating would leave the range of the losses"
    assert loss_for_rate([1.7, 3.9], [0.2, 0.7], 0.7) == 3.9


def test_a_rate_out_of_reach_says_how_far_it_went() -> None:
    with pytest.raises(ValueError, match=r"wanted is 0\.95, and the fit reaches 0\.7 at .* 2;"):
        loss_for_rate([1.0, 2.0], [0.1, 0.7], 0.95)
    with pytest.raises(ValueError, match=r"wanted is 0\.05, and the fit has 0\.1 at .* 1\."):
        loss_for_rate([1.0, 2.0], [0.1, 0.7], 0.05)


@pytest.mark.parametrize(
    ("losses", "rates"),
    [([1.0], [0.5]), ([1.0, math.nan], [0.1, 0.5]), ([1.0, 2.0], [0.1, math.inf])],
)
def test_pairs_are_checked(losses: list[float], rates: list[float]) -> None:
    with pytest.raises(ValueError, match="pairs"):
        loss_for_rate(losses, rates, 0.3)
    with pytest.raises(ValueError, match="argument"):
        loss_for_rate([1.0, 2.0], [0.5], 0.3)


@pytest.mark.parametrize("seed", range(20))
def test_tied_losses_are_one_point_of_their_weight(seed: int) -> None:
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


def test_the_order_of_pairs_does_not_matter_and_neither_does_their_type() -> None:
    losses, rates = [2.0, 1.0, 1.0, 3.0], [0.5, 0.5, 0.0, 1.0]
    expected = loss_for_rate(losses, rates, 0.75)
    assert expected == 2.5 and type(expected) is float
    for kind in (np.array, torch.tensor):
        for rate in (0.75, kind(0.75)):
            found = loss_for_rate(kind(losses), kind(rates), rate)
            assert found == expected and type(found) is float
    assert loss_for_rate(losses[::-1], rates[::-1], 0.75) == expected
    assert loss_for_rate([1, 2], [0, 1], 1) == 2.0


@pytest.mark.parametrize("count", range(2, 12))
def test_equal_rates_stay_what_they_are_to_the_last_bit(count: int) -> None:
    assert loss_for_rate(range(count), [0.1] * count, 0.1) == 0.0
    assert loss_for_rate([1.0] * count, [0.1] * count, 0.1) == 1.0


def test_a_rate_that_is_no_number_is_refused() -> None:
    for rate in (math.nan, math.inf):
        with pytest.raises(ValueError, match=f"the rate {rate}: all have to be finite"):
            loss_for_rate([1.0, 2.0], [0.1, 0.7], rate)


@pytest.mark.parametrize("measured", [torch.ones(2), np.ones(2), None, "much", 1j])
def test_a_measurement_that_is_no_number_is_named(measured: object) -> None:
    with pytest.raises(ValueError, match="one number per batch and the measure returned a"):
        level_of(lambda _: measured, [0])  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [[1e308] * 3, [1e200, -1e200], [0.1] * 7])
def test_a_level_is_exact_at_any_size(values: list[float]) -> None:
    scale = max(values)
    level = level_of(lambda value: value, values)  # type: ignore[arg-type]
    scaled = [value / scale for value in values]
    assert level.value == scale * float(np.mean(scaled))
    error = np.std(scaled, ddof=1) / math.sqrt(len(values))
    assert level.error == pytest.approx(scale * error, rel=1e-12)
