"""OpenUnlearning's aggregates: memorisation, privacy, utility and the three together.

All are in [0, 1] and higher is better. Its paper (Dorna et al. 2025, appendix F) names the parts;
its repository has the harmonic mean and the parts, but not the aggregates, which were made in a
notebook that is not public, and no formula for how close an AUC is to the retrained model's.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.tasks.tofu.metrics import harmonic_mean


def memorization_score(
    extraction_strength: float,
    exact_memorization: float,
    paraphrased_probability: float,
    truth_share: float,
) -> float:
    """Harmonic mean of one minus each of four shares that are remembered.

    1 = nothing is left, 0 = one of the four is complete. A model that never saw the forget set is
    far from 1: OpenUnlearning gives 0.31 for its own retrained model.

    Args:
        extraction_strength: OpenUnlearning's variant, on the forget answers.
        exact_memorization: share of their tokens that are the most likely ones.
        paraphrased_probability: mean `P^(1/tokens)` of the paraphrased forget answers.
        truth_share: `truth.truth_share` of the forget set.

    >>> round(memorization_score(0.5, 0.5, 0.5, 0.75), 4)
    0.4
    """
    left = (extraction_strength, exact_memorization, paraphrased_probability, truth_share)
    return harmonic_mean([1 - share for share in left])


def closeness(auc: float, retrained_auc: float) -> float:
    """Nearness of a membership AUC to the retrained model's, as a share of the way it could be off.

    `1 - |AUC - AUC_r| / max(AUC_r, 1 - AUC_r)`: 1 = the same, 0 = as far as any model can be.
    The formula is this library's, since OpenUnlearning's is not published: a privacy score made of
    it compares the models of one table and does not belong beside numbers from elsewhere.

    >>> closeness(1.0, 0.5), closeness(0.5, 0.5), closeness(0.25, 0.75)
    (0.0, 1.0, 0.33333333333333337)
    """
    farthest = max(retrained_auc, 1 - retrained_auc)
    return max(1 - abs(auc - retrained_auc) / farthest, 0.0)  # rounding may fall below


def privacy_score(pairs: Iterable[tuple[float, float]]) -> float:
    """Harmonic mean of `closeness` over attacks: LOSS, ZLib, Min-K% and Min-K%++.

    Args:
        pairs: AUC of the model and of the retrained model, one pair per attack.

    >>> round(privacy_score([(0.75, 0.5), (0.5, 0.5)]), 4)
    0.6667
    """
    return harmonic_mean([closeness(*pair) for pair in pairs])


def utility_score(
    model_utility: float, fluency: float, full_model_utility: float, full_fluency: float
) -> float:
    """Harmonic mean of model utility and fluency, relative to that of the model before unlearning.

    Args:
        model_utility: TOFU's, of nine parts.
        fluency: mean probability that a classifier of gibberish calls the answers to the forget
            questions clean; OpenUnlearning's `classifier_prob`, whose classifier is not part of
            this library.
        full_model_utility: of the model before unlearning.
        full_fluency: of the model before unlearning.

    >>> utility_score(0.6, 0.9, 0.6, 0.9)
    1.0
    """
    full = harmonic_mean([full_model_utility, full_fluency])
    return harmonic_mean([model_utility, fluency]) / full


def overall_score(memorization: float, privacy: float, utility: float) -> float:
    """Harmonic mean of the three: 0 as soon as one of them is 0.

    >>> round(overall_score(0.5, 0.5, 1.0), 4)
    0.6
    """
    return harmonic_mean([memorization, privacy, utility])
