"""Verbatim memorisation and membership, from per-token or per-text values."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Convention: TypeAlias = Literal["openunlearning", "muse"]


def extraction_strength(
    matches: Sequence[bool], *, nothing: Literal["openunlearning", "zero"] = "openunlearning"
) -> float:
    """Share of the answer that follows word for word once its first part is given, in [0, 1].

    `1 - k / n` with `k` the length of the shortest prefix after which every teacher-forced
    greedy token is right: 1 = the question alone suffices. Source: Carlini et al. 2021 as
    computed by OpenUnlearning, which leaves the end-of-sequence token out of `matches`.

    Args:
        matches: per answer token, whether the most likely token is the right one. Empty gives 0.
        nothing: the value when not even the last token is right. OpenUnlearning's loop ends one
            short and returns `1 / n` there (1 for a single wrong token); `"zero"` returns 0, what
            the definition says.

    >>> extraction_strength([False, True, False, True])
    0.25
    >>> extraction_strength([True, True, False, False], nothing="zero")
    0.0
    """
    n = len(matches)
    if n == 0:
        return 0.0
    suffix = next((i for i, right in enumerate(reversed(matches)) if not right), n)
    if suffix == 0 and nothing == "openunlearning":
        suffix = 1
    return suffix / n


def min_k_score(
    log_probabilities: Iterable[float], k: float = 0.4, *, convention: Convention = "openunlearning"
) -> float:
    """Minus the mean of the `floor(k n)` smallest token log-probabilities, in nats.

    Small = even the least likely tokens of the text are expected = looks like training data.
    Source: Min-K% (Shi et al. 2024) as computed by OpenUnlearning and MUSE.

    Args:
        log_probabilities: of the scored tokens, shape `(n,)`. OpenUnlearning scores the labelled
            tokens without the last (the end of sequence), MUSE all tokens but the first.
        k: share of the tokens that count.
        convention: when `floor(k n)` is 0, OpenUnlearning takes one token (and 0.0 for an empty
            text), MUSE's mean of nothing is NaN.

    >>> min_k_score([-0.5, -3.0, -1.0, -2.0, -0.1])
    2.5
    """
    values = _float64(log_probabilities).sort().values
    count = math.floor(k * len(values))
    if convention == "openunlearning":
        count = max(count, 1)
    if count == 0:
        return math.nan
    return -float(values[:count].mean()) if len(values) else 0.0


def membership_auc(
    forget_scores: Iterable[float], holdout_scores: Iterable[float], *, convention: Convention
) -> float:
    """How well a score such as `min_k_score` tells forget texts from unseen ones, in [0, 1].

    `"muse"`: the probability that a holdout text scores *below* a forget text (ties one half);
    near 0 for a model that memorised the forget set. `"openunlearning"`: 1 minus that; near 1
    for a model that memorised. 0.5 = cannot tell, in both.
    Source: MUSE, PrivLeak; OpenUnlearning's membership attacks.

    Raises:
        ValueError: one of the two groups is empty.

    Cost: a sort.

    >>> membership_auc([1.0, 2.0], [2.0, 3.0], convention="muse")
    0.125
    >>> membership_auc([1.0, 2.0], [2.0, 3.0], convention="openunlearning")
    0.875
    """
    forget, holdout = _float64(forget_scores), _float64(holdout_scores).sort().values
    if len(forget) == 0 or len(holdout) == 0:
        raise ValueError(
            f"membership_auc found {len(forget)} forget and {len(holdout)} holdout scores; the "
            "probability of a pair needs both. Does this split have a holdout file?"
        )
    if forget.isnan().any() or holdout.isnan().any():
        return math.nan
    below, not_above = (torch.searchsorted(holdout, forget, right=side) for side in (False, True))
    muse = (below + not_above).sum().item() / (2 * len(forget) * len(holdout))
    return muse if convention == "muse" else 1 - muse


def _float64(values: Iterable[float]) -> Tensor:
    return torch.tensor([float(value) for value in values], dtype=torch.float64)
