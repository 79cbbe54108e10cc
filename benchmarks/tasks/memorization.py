"""Membership, from per-token or per-text values."""

import math
from collections.abc import Iterable
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Convention: TypeAlias = Literal["openunlearning", "muse"]


def min_k_score(
    log_probabilities: Iterable[float], k: float = 0.4, *, convention: Convention = "openunlearning"
) -> float:
    """Return minus the mean of the `floor(k n)` smallest token log-probabilities, in nats.

    A small score means that even the least likely tokens are expected, as in training data.
    OpenUnlearning scores the labelled tokens without the end of sequence, MUSE all tokens but the
    first. If `floor(k n)` is 0, the former takes one token (0.0 for an empty text), the latter NaN.
    Source: Min-K% (Shi et al. 2024) as computed by OpenUnlearning and MUSE.

    >>> min_k_score([-0.5, -3.0, -1.0, -2.0, -0.1])
    2.5
    """
    values = _float64(log_probabilities)
    count = max(math.floor(k * len(values)), int(convention == "openunlearning"))
    if count == 0:
        return math.nan
    return -float(values.sort().values[:count].mean()) if len(values) else 0.0


def membership_auc(
    forget_scores: Iterable[float], holdout_scores: Iterable[float], *, convention: Convention
) -> float:
    """Return the AUC of a score such as `min_k_score` for forget and unseen texts, in [0, 1].

    `"muse"`: the probability that a holdout text scores *below* a forget text (ties one half), near
    0 for a model that memorised. `"openunlearning"`: 1 minus that. 0.5 = cannot tell, in both.
    NaN among the scores gives NaN. Source: MUSE, PrivLeak; OpenUnlearning's membership attacks.

    >>> membership_auc([1.0, 2.0], [2.0, 3.0], convention="muse")
    0.125
    >>> membership_auc([1.0, 2.0], [2.0, 3.0], convention="openunlearning")
    0.875
    """
    forget, holdout = _float64(forget_scores), _float64(holdout_scores).sort().values
    if forget.isnan().any() or holdout.isnan().any():
        return math.nan
    below, not_above = (torch.searchsorted(holdout, forget, right=side) for side in (False, True))
    muse = (below + not_above).sum().item() / (2 * len(forget) * len(holdout))
    return muse if convention == "muse" else 1 - muse


def _float64(values: Iterable[float]) -> Tensor:
    return torch.tensor([float(value) for value in values], dtype=torch.float64)
