"""TOFU's metrics as pure functions of per-item values: no model, no tokenizer, no file.

A *loss* is always the mean negative log-likelihood of the labelled tokens of one answer in nats
(the end-of-sequence token counts, as in TOFU and OpenUnlearning). Sources: TOFU (Maini et al.
2024); OpenUnlearning for the values where TOFU's paper and code disagree.
"""

import functools
import warnings

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rouge_score.rouge_scorer import RougeScorer
from scipy import stats

Array = NDArray[np.float64]


def probability(losses: ArrayLike) -> Array:
    """Return `exp(-loss)`, that is, `P(answer | question)^(1 / tokens)`, in [0, 1].

    Source: TOFU, section 2.2 ("probability"); same in OpenUnlearning.

    >>> round(float(probability((0.2 + 0.4 + 0.6) / 3)), 5)
    0.67032
    """
    return np.exp(-np.asarray(losses, dtype=np.float64))


@functools.cache
def _scorer() -> RougeScorer:
    return RougeScorer(["rougeL"], use_stemmer=True)


def rouge_l_recall(generation: str, reference: str) -> float:
    """Return ROUGE-L recall: the share of the reference's words in the generation, in order.

    Recall does not penalise length; an empty generation or reference scores 0.
    Source: TOFU, section 2.2, with the `rouge_score` package and its stemmer on.

    >>> rouge_l_recall("It became part of Scotland in 1472.", "1472")
    1.0
    """
    return float(_scorer().score(reference, generation)["rougeL"].recall)


def model_utility(parts: ArrayLike) -> float:
    """Return the harmonic mean of nine numbers in [0, 1]; 0 if one of them is 0.

    They are probability, ROUGE-L recall and `utility_truth_ratio` on the retain set, on real
    authors and on world facts; the probability of the last two is `normalised_probability`.
    None comes from the forget set. Source: TOFU, section 2.2.

    >>> round(model_utility([0.9, 0.8, 0.5, 0.6, 0.9, 0.6, 0.5, 0.9, 0.6]), 5)
    0.66258
    """
    return harmonic_mean(parts)


def harmonic_mean(values: ArrayLike) -> float:
    """Return the harmonic mean of numbers >= 0: 0 if one of them is 0, NaN if one is NaN."""
    return float(stats.hmean(np.asarray(values, dtype=np.float64)))


def forget_quality(ratios: ArrayLike, retrained_ratios: ArrayLike) -> float:
    """Return the p-value of "both models have the same forget truth ratios", in (0, 1].

    Two-sample, two-sided Kolmogorov-Smirnov test between the items' truth ratios; the second
    sample comes from the model trained without this forget set, same architecture. 1 means
    that they are alike. Ratios and their logarithms give the same value unless one overflows.
    Source: TOFU, section 2.2.

    >>> round(forget_quality([0.2, 0.4, 0.6, 0.8], [0.5, 0.7, 0.9, 1.1]), 5)
    0.77143
    """
    with warnings.catch_warnings():
        # For nearly equal samples the exact p-value can round to above 1; scipy then returns the
        # asymptotic one, with a warning.
        warnings.filterwarnings("ignore", "ks_2samp: Exact calculation unsuccessful")
        return float(stats.ks_2samp(ratios, retrained_ratios).pvalue)


def log10_forget_quality(ratios: ArrayLike, retrained_ratios: ArrayLike) -> float:
    """Return `log10(forget_quality)`, at least -239 with TOFU's largest forget set (400 rows)."""
    with np.errstate(divide="ignore"):
        return float(np.log10(forget_quality(ratios, retrained_ratios)))
