"""TOFU's metrics against worked values, oracles in plain Python, and their own invariances."""

import math
import statistics
from fractions import Fraction
from random import Random

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tasks.tofu import metrics as tofu
from benchmarks.tasks.tofu import truth

seeded = settings(derandomize=True, deadline=None, max_examples=60)


@pytest.mark.parametrize(
    ("reference", "generation", "recall"),
    [("She wrote several mystery novels", "She writes a mystery novel", 0.6),
     ("Paris", "", 0.0),
     ("?!", "?!", 0.0)],
)  # fmt: skip
def test_rouge_recall(reference: str, generation: str, recall: float) -> None:
    assert tofu.rouge_l_recall(generation, reference) == pytest.approx(recall, abs=1e-12)


def longest_common_subsequence(left: list[str], right: list[str]) -> int:
    lengths = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            longer = max(lengths[i][j + 1], lengths[i + 1][j])
            lengths[i + 1][j + 1] = lengths[i][j] + 1 if a == b else longer
    return lengths[-1][-1]


words = st.lists(st.sampled_from(["oslo", "rome", "in", "was", "born"]), max_size=12)


@seeded
@given(generation=words, reference=words)
def test_rouge_is_the_longest_common_subsequence_over_the_reference(
    generation: list[str], reference: list[str]
) -> None:
    expected = longest_common_subsequence(generation, reference) / max(len(reference), 1)
    found = tofu.rouge_l_recall(" ".join(generation), " ".join(reference))
    assert found == pytest.approx(expected, abs=1e-12)


def test_a_part_that_is_zero_or_unknown_decides_model_utility() -> None:
    assert tofu.model_utility([0.0, *[0.5] * 8]) == 0.0
    assert math.isnan(tofu.model_utility([math.nan, *[0.5] * 8]))


@seeded
@given(parts=st.lists(st.floats(1e-6, 1), min_size=9, max_size=9))
def test_model_utility_is_the_harmonic_mean(parts: list[float]) -> None:
    expected = float(Fraction(9) / sum(1 / Fraction(part) for part in parts))
    assert tofu.model_utility(parts) == pytest.approx(expected, rel=1e-12)
    assert tofu.model_utility(parts) <= statistics.fmean(parts) * (1 + 1e-12)


samples = st.lists(st.integers(0, 8).map(float), min_size=1, max_size=5)


@seeded
@given(left=samples, right=samples)
def test_forget_quality_is_invariant_under_monotone_maps_and_symmetric(
    left: list[float], right: list[float]
) -> None:
    quality = tofu.forget_quality(left, right)
    assert tofu.forget_quality(right, left) == pytest.approx(quality, abs=1e-12)
    inverse = [[1 / (r + 1e-10) for r in sample] for sample in (left, right)]
    assert tofu.forget_quality(*inverse) == pytest.approx(quality, abs=1e-12)
    assert tofu.forget_quality(left[::-1], right) == quality
    assert tofu.forget_quality(left, left) == 1.0
    assert 10 ** tofu.log10_forget_quality(left, right) == pytest.approx(quality, rel=1e-9)


@pytest.mark.parametrize(("n", "h"), [(40, 40), (400, 400), (400, 300)])
def test_log_forget_quality_is_that_of_the_lattice_paths(n: int, h: int) -> None:
    """The exact p-value of two samples of n with statistic h / n: the reflection principle."""
    items = np.arange(n, dtype=float)
    with mpmath.workdps(60):
        signs = ((-1) ** (k - 1) * mpmath.binomial(2 * n, n - k * h) for k in range(1, n // h + 1))
        expected = float(mpmath.log10(2 * mpmath.fsum(signs) / mpmath.binomial(2 * n, n)))
    found = tofu.log10_forget_quality(items, items + h - 0.5)
    assert found == pytest.approx(expected, rel=1e-12)


def test_forget_quality_of_a_broken_model_is_unknown() -> None:
    assert math.isnan(tofu.forget_quality([math.nan, 1.0], [0.5, 1.0]))
    assert math.isnan(tofu.log10_forget_quality([math.nan, 1.0], [0.5, 1.0]))


CONVENTIONS = pytest.mark.parametrize("guard", [1e-10, 0.0], ids=["openunlearning", "tofu"])
losses = st.floats(0, 400)
answers = st.lists(losses, min_size=1, max_size=5)
log_ratios = st.lists(st.floats(-900, 900), min_size=1, max_size=30)


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
