"""Truth ratios and normalised probabilities, under OpenUnlearning's convention and under TOFU's.

Losses are mean negative log-likelihoods per token in nats, as in `metrics`. Everything is computed
in log space, where nothing overflows or underflows.
"""

import functools
import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Convention = Literal["openunlearning", "tofu"]

GUARDS: dict[Convention, float] = {"openunlearning": 1e-10, "tofu": 0.0}
"""Summands in the denominators of ratios; part of the numbers one compares with.

OpenUnlearning's takes over where a probability falls below it, at a loss of 23.03 nats per token:
from there on a truth ratio no longer compares two answers but says how unlikely the wrong ones are.
TOFU's own code has none.
"""
EPSILON = GUARDS["openunlearning"]


@np.errstate(invalid="ignore")  # NaN without a guard if all answers are impossible
def normalised_probability(
    true_loss: ArrayLike, wrong_losses: ArrayLike, guard: float = EPSILON
) -> Array:
    """Return `P(true) / (P(true) + sum of P(wrong) + guard)`, in [0, 1].

    It is for real authors and world facts only: 1 / number of answers if the model cannot tell, 0
    with a guard if all answers are impossible. Computed in log space, so that without a guard
    impossible answers still compare.

    Wrong answers stand along the last dimension.

    Source: TOFU, section 2.2; OpenUnlearning's `probability_w_options`.

    >>> round(float(normalised_probability(0.5, [1.0, 2.0, 3.0])), 5)
    0.52308
    """
    true = -np.asarray(true_loss, dtype=np.float64)
    wrong = np.logaddexp.reduce(-np.asarray(wrong_losses, dtype=np.float64), axis=-1)
    return np.exp(true - _log_sum(true, wrong, _log(guard)))


def _log(guard: float) -> float:
    return math.log(guard) if guard else -math.inf


@np.errstate(invalid="ignore")  # NaN losses of a broken model give NaN ratios
def _log_sum(*logs: ArrayLike) -> Array:
    return functools.reduce(np.logaddexp, map(np.float64, logs))


@np.errstate(invalid="ignore")
def log_truth_ratio(
    correct_loss: ArrayLike, wrong_losses: ArrayLike, guard: float = EPSILON
) -> Array:
    """Return `log R` in nats, with `R = P(wrong answers) / (P(correct answer) + guard)`.

    R near 0: the model knows the truth; 1: it cannot tell. "Correct" is the paraphrased answer on
    forget and retain sets, the answer itself on real authors and world facts. Wrong answers are
    combined by the mean of their losses, as in TOFU's leaderboard code and OpenUnlearning; TOFU's
    paper takes that of their probabilities.

    Wrong answers stand along the last dimension; the guard is one of `GUARDS`.

    >>> round(float(log_truth_ratio(0.5, [1.0, 2.0])), 5)
    -1.0
    >>> round(float(log_truth_ratio(40.0, [40.0, 40.0])), 5)  # cannot tell, but the guard can
    -16.97415
    >>> float(log_truth_ratio(40.0, [40.0, 40.0], guard=GUARDS["tofu"]))
    0.0
    """
    correct = -np.asarray(correct_loss, dtype=np.float64)
    wrong = -np.asarray(wrong_losses, dtype=np.float64)
    return wrong.mean(axis=-1) - _log_sum(correct, _log(guard))


def forget_truth_ratio(log_ratios: ArrayLike, guard: float = EPSILON) -> float:
    """Return the mean of `min(R, 1 / (R + guard))`: 1 if true and false answers are as likely.

    Source: "closer to 1 is better" of OpenUnlearning and of TOFU's `get_model_utility`; used on the
    forget set.

    >>> round(forget_truth_ratio([-1.0, 1.0]), 5)
    0.36788
    """
    logs = np.asarray(log_ratios, dtype=np.float64)
    return float(np.mean(np.exp(np.minimum(logs, -_log_sum(logs, _log(guard))))))


def utility_truth_ratio(log_ratios: ArrayLike) -> float:
    """Return the mean of `max(0, 1 - R)`, in [0, 1]: 1 if only the true answer is likely.

    Source: TOFU, section 2.2; used on retain set, real authors and world facts.

    >>> round(utility_truth_ratio([-1.0, 1.0]), 5)
    0.31606
    """
    return float(np.mean(-np.expm1(np.minimum(np.asarray(log_ratios, dtype=np.float64), 0.0))))
