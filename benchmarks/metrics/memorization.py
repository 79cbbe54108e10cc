"""Verbatim memorisation and membership: extraction strength, Min-K%, AUC, PrivLeak.

Pure functions of per-token or per-text values. Exact-match failure and the margin certificate,
which need logits, are `torch_alm.measures`' and are read per sequence in `scoring`.
"""

from __future__ import annotations

from torch_alm.language import Convention, extraction_strength, membership_auc, min_k_score

__all__ = ["Convention", "extraction_strength", "membership_auc", "min_k_score", "privleak"]


def privleak(auc: float, retrained_auc: float) -> float:
    """`100 (AUC - AUC_retrained) / AUC_retrained` in percent, both in MUSE's orientation.

    -100 = fully recognisable as a member, 0 = as the retrained model, large = over-unlearned.
    Source: MUSE, PrivLeak.

    >>> privleak(0.125, 0.5)
    -75.0
    """
    return 100 * (auc - retrained_auc) / retrained_auc
