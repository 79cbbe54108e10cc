"""From rows per question to the numbers of one table row: pure, so saved rows can be summed again.

Every key is always present; `None` says that the data or the retrained model for it are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.tasks.tofu import metrics
from torch_alm.language import membership_auc

SUBSETS = ("forget", "retain", "real_authors", "world_facts")
NEIGHBOURS = ("real_authors", "world_facts")

Rows = Sequence[Mapping[str, Any]]
Numbers = dict[str, float | None]


def summarise(rows: Rows, retrained_truth_ratios: Sequence[float] | None = None) -> Numbers:
    """All numbers of TOFU's protocol and of memorisation, flat, from the rows of `evaluate`.

    Per subset: `S_loss`, `S_probability` (normalised for the neighbours), `S_rouge`,
    `S_exact_match` (share reproduced to the last token, end of sequence included) and
    `S_truth_ratio`. Then `model_utility`, `forget_quality`, `forget_quality_log10`,
    `extraction_strength`, `retain_extraction_strength`, `certificate`, `certificate_raw`,
    `min_k_auc`.

    `certificate` is the mean over forget answers of max(phi, 0), `certificate_raw` of phi itself;
    both are at most `1 - forget_exact_match`. `min_k_auc` follows OpenUnlearning: near 1 for a
    model that memorised the forget set. Source: the definitions in `metrics`.

    Args:
        rows: in any order; the sums do not depend on it.
        retrained_truth_ratios: the forget rows' truth ratios of the model trained without the
            forget set; without them forget quality is `None`.
    """
    subsets = {name: [row for row in rows if row["subset"] == name] for name in SUBSETS}
    numbers: Numbers = {}
    for name, members in subsets.items():
        numbers |= {f"{name}_{key}": value for key, value in _subset(name, members).items()}
    numbers["model_utility"] = _model_utility(numbers)
    numbers |= _forget_quality(truth_ratios(subsets["forget"]), retrained_truth_ratios)
    numbers |= _memorization(subsets, [row for row in rows if row["subset"] == "holdout"])
    return numbers


def truth_ratios(rows: Rows, subset: str = "forget") -> list[float] | None:
    """The truth ratios of one subset, or `None` if a row has none: what forget quality compares."""
    ratios = [row["truth_ratio"] for row in rows if row["subset"] == subset]
    return None if not ratios or None in ratios else ratios


def _subset(name: str, rows: Rows) -> Numbers:
    probability = "normalised_probability" if name in NEIGHBOURS else "probability"
    ratios = truth_ratios(rows, name)
    score = metrics.forget_truth_ratio if name == "forget" else metrics.utility_truth_ratio
    return {
        "loss": _mean(row["loss"] for row in rows),
        "probability": _mean(row[probability] for row in rows),
        "rouge": _mean(row["rouge"] for row in rows),
        "exact_match": _mean(row["exact_match"] for row in rows),
        "truth_ratio": None if ratios is None else score(ratios),
    }


def _model_utility(numbers: Numbers) -> float | None:
    kinds = ("probability", "rouge", "truth_ratio")
    parts = [numbers[f"{name}_{kind}"] for name in ("retain", *NEIGHBOURS) for kind in kinds]
    known = [part for part in parts if part is not None]
    return metrics.model_utility(known) if len(known) == len(parts) else None


def _forget_quality(ratios: Sequence[float] | None, retrained: Sequence[float] | None) -> Numbers:
    if ratios is None or retrained is None:
        return {"forget_quality": None, "forget_quality_log10": None}
    return {
        "forget_quality": metrics.forget_quality(ratios, retrained),
        "forget_quality_log10": metrics.log10_forget_quality(ratios, retrained),
    }


def _memorization(subsets: Mapping[str, Rows], holdout: Rows) -> Numbers:
    forget, retain = subsets["forget"], subsets["retain"]
    scores = [[row["min_k"] for row in rows] for rows in (forget, holdout)]
    return {
        "extraction_strength": _mean(row["extraction_strength"] for row in forget),
        "retain_extraction_strength": _mean(row["extraction_strength"] for row in retain),
        # Floored per sequence: still a lower bound, and one remembered answer (phi down to
        # -1/tau) cannot drown the others.
        "certificate": _mean(max(row["certificate"], 0.0) for row in forget),
        "certificate_raw": _mean(row["certificate"] for row in forget),
        "min_k_auc": membership_auc(*scores, convention="openunlearning")
        if forget and holdout
        else None,
    }


def _mean(values: Iterable[float | None]) -> float | None:
    """Their mean; `None` for no values, or where one of them is missing."""
    known = list(values)
    return None if not known or None in known else float(np.mean(known))
