"""Truth ratios against their formulas in a hundred digits, under both conventions."""

import math
import statistics
from random import Random

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tasks.tofu import truth

CONVENTIONS = pytest.mark.parametrize("guard", [1e-10, 0.0], ids=["openunlearning", "tofu"])
losses = st.floats(0, 400)
answers = st.lists(losses, min_size=1, max_size=5)
log_ratios = st.lists(st.floats(-900, 900), min_size=1, max_size=30)
seeded = settings(derandomize=True, deadline=None, max_examples=40)


def likely(loss: float) -> mpmath.mpf:
    return mpmath.exp(-mpmath.mpf(loss))


@CONVENTIONS
@seeded
@given(correct=losses, wrong=answers)
def test_ratios_are_their_formulas_at_any_loss(
    guard: float, correct: float, wrong: list[float]
) -> None:
    with mpmath.workdps(100):
        mean = likely(sum(map(mpmath.mpf, wrong)) / len(wrong))
        expected = mpmath.log(mean / (likely(correct) + guard))
        found = truth.log_truth_ratio(correct, wrong, guard=guard)
        assert found == pytest.approx(float(expected), rel=1e-12, abs=1e-9)
        expected += mpmath.log(mpmath.fsum(map(likely, wrong)) / len(wrong) / mean)
        found = truth.log_truth_ratio(correct, wrong, guard=guard, mean="arithmetic")
        assert found == pytest.approx(float(expected), rel=1e-12, abs=1e-9)
        expected = likely(correct) / (likely(correct) + mean + guard)
        found = truth.truth_share(correct, wrong, guard)
        assert found == pytest.approx(float(expected), rel=1e-9)
        expected = likely(correct) / (likely(correct) + mpmath.fsum(map(likely, wrong)) + guard)
        found = truth.normalised_probability(correct, wrong, guard)
        assert found == pytest.approx(float(expected), rel=1e-9)


@CONVENTIONS
@seeded
@given(logs=log_ratios, random=st.randoms(use_true_random=False))
def test_aggregates_are_means_in_the_unit_interval_in_any_order(
    guard: float, logs: list[float], random: Random
) -> None:
    ratios = [mpmath.exp(x) for x in logs]
    forget = statistics.fmean(float(min(r, 1 / (r + guard))) for r in ratios)
    utility = statistics.fmean(float(max(0, 1 - r)) for r in ratios)
    random.shuffle(logs)
    assert truth.forget_truth_ratio(logs, guard) == pytest.approx(forget, abs=1e-12)
    assert truth.utility_truth_ratio(logs) == pytest.approx(utility, abs=1e-12)
    assert 0 <= forget <= 1
    assert 0 <= utility <= 1


def test_infinite_losses_are_impossible_answers() -> None:
    expected = math.log(math.exp(-1) / 1e-10)
    assert truth.log_truth_ratio(math.inf, [1.0]) == pytest.approx(expected)
    assert truth.log_truth_ratio(0.0, [math.inf, 1.0]) == -math.inf
    assert truth.normalised_probability(math.inf, [math.inf]) == 0
    assert math.isnan(truth.normalised_probability(math.inf, [math.inf], 0.0))
    assert math.isnan(truth.log_truth_ratio(math.inf, [math.inf], guard=0.0))
