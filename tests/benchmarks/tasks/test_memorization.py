"""Extraction strength, Min-K% and membership AUC against worked values and oracles."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tasks.memorization import (
    exact_memorization,
    membership_auc,
    min_k_plus_plus_score,
    min_k_score,
    openunlearning_extraction_strength,
)
from torch_alm.language import extraction_strength

seeded = settings(derandomize=True, deadline=None, max_examples=100)


def strength_by_definition(matches: list[bool]) -> float:
    n = len(matches)
    return next(1 - k / n for k in range(n + 1) if all(matches[k:]))


def strength_by_their_loop(matches: list[bool]) -> float:
    """OpenUnlearning's loop, which never looks at the empty suffix."""
    k = 0
    for k in range(len(matches)):
        if all(matches[k:]):
            break
    return 1 - k / len(matches)


@seeded
@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_each_extraction_strength_is_its_definition(matches: list[bool]) -> None:
    ours, theirs = extraction_strength(matches), openunlearning_extraction_strength(matches)
    assert ours == pytest.approx(strength_by_definition(matches), abs=1e-12)
    assert theirs == pytest.approx(strength_by_their_loop(matches), abs=1e-12)
    assert exact_memorization(matches) == statistics.fmean(matches) >= ours


def test_extraction_strength_at_the_edges() -> None:
    assert extraction_strength([]) == openunlearning_extraction_strength([]) == 0.0
    assert extraction_strength([True, True]) == 1.0
    assert extraction_strength([False]) == 0.0
    assert openunlearning_extraction_strength([False]) == 1.0
    assert math.isnan(exact_memorization([]))


def test_min_k_of_short_texts() -> None:
    assert math.isnan(min_k_score([-1.0, -2.0], 0.4, convention="muse"))
    assert min_k_score([-1.0, -2.0], 0.4) == 2.0
    assert math.isnan(min_k_score([], 0.4, convention="muse"))
    assert min_k_score([], 0.4) == 0.0
    assert min_k_score([-math.inf, -1.0, -1.0], 0.4) == math.inf


tables = st.lists(st.lists(st.floats(-12, 12), min_size=3, max_size=3), min_size=1, max_size=9)


@seeded
@given(tables, st.floats(0.05, 1))
def test_min_k_plus_plus_standardises_by_the_distribution(
    logits: list[list[float]], k: float
) -> None:
    scores, said, moments = [], [], []
    for row in logits:
        total = math.fsum(math.exp(x) for x in row)
        p = [math.exp(x) / total for x in row]
        logs = [math.log(x) for x in p]
        mean = math.fsum(x * y for x, y in zip(p, logs, strict=True))
        variance = math.fsum(x * (y - mean) ** 2 for x, y in zip(p, logs, strict=True))
        said.append(logs[0])
        moments.append((mean, variance))
        scores.append((logs[0] - mean) / math.sqrt(max(variance, 1e-6)))
    count = max(math.floor(k * len(scores)), 1)
    found = min_k_plus_plus_score(said, moments, k)
    assert found == pytest.approx(-statistics.fmean(sorted(scores)[:count]), abs=1e-9)


def test_min_k_plus_plus_at_the_edges() -> None:
    certain = [(0.0, 0.0)]
    assert min_k_plus_plus_score([-1e-3], certain) == pytest.approx(1.0)  # 1e-3 / sqrt(1e-6)
    assert min_k_plus_plus_score([], []) == 0.0


scores = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=8)


@seeded
@given(forget=scores, holdout=scores)
def test_auc_counts_pairs_with_ties_one_half(forget: list[float], holdout: list[float]) -> None:
    pairs = [(h < f) + (h == f) / 2 for f in forget for h in holdout]
    muse = membership_auc(forget, holdout, convention="muse")
    assert muse == pytest.approx(statistics.fmean(pairs), abs=1e-12)
    assert membership_auc(forget, holdout, convention="openunlearning") == 1 - muse
    assert membership_auc(holdout, forget, convention="muse") == pytest.approx(1 - muse, abs=1e-12)
    assert membership_auc(np.exp(forget), np.exp(holdout), convention="muse") == muse
    assert membership_auc(forget[::-1], holdout[::-1], convention="muse") == muse


def test_auc_of_infinite_scores_and_of_none() -> None:
    assert membership_auc([math.inf, math.inf], [3.0, 4.0], convention="muse") == 1.0
    assert math.isnan(membership_auc([math.nan], [3.0], convention="muse"))


@pytest.mark.parametrize(("forget", "holdout"), [([], [1.0]), ([1.0], [])])
def test_auc_needs_both_groups(forget: list[float], holdout: list[float]) -> None:
    with pytest.raises(ValueError, match="holdout file"):
        membership_auc(forget, holdout, convention="muse")
