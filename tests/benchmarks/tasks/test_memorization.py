"""Extraction strength, Min-K% and membership AUC against worked values and oracles."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tasks.memorization import membership_auc, min_k_score
from torch_alm.language import extraction_strength

seeded = settings(derandomize=True, deadline=None, max_examples=100)


def strength_by_definition(matches: list[bool]) -> float:
    n = len(matches)
    return next(1 - k / n for k in range(n + 1) if all(matches[k:]))


@seeded
@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_extraction_strength_is_its_definition(matches: list[bool]) -> None:
    assert extraction_strength(matches) == pytest.approx(strength_by_definition(matches), abs=1e-12)


def test_extraction_strength_at_the_edges() -> None:
    assert [extraction_strength(m) for m in ([], [True, True], [False])] == [0.0, 1.0, 0.0]


def test_min_k_of_short_texts() -> None:
    assert math.isnan(min_k_score([-1.0, -2.0], 0.4, convention="muse"))
    assert min_k_score([-1.0, -2.0], 0.4) == 2.0
    assert math.isnan(min_k_score([], 0.4, convention="muse"))
    assert min_k_score([], 0.4) == 0.0
    assert min_k_score([-math.inf, -1.0, -1.0], 0.4) == math.inf


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
