"""From rows per question to the numbers of one table row, for new or saved rows.

Every key is always present; it is `None` if its data or the retrained model are missing.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.tasks.memorization import membership_auc
from benchmarks.tasks.tofu import metrics, truth
from benchmarks.tasks.tofu.truth import EPSILON, GUARDS, Convention

SUBSETS = ("forget", "retain", "real_authors", "world_facts")
NEIGHBOURS = ("real_authors", "world_facts")
SUFFIXES: dict[Convention, str] = {"openunlearning": "", "tofu": "_tofu"}
"""Endings of the keys of a convention's numbers."""

ATTACKS = {
    "membership_auc": "min_k",
    "membership_auc_min_k_plus_plus": "min_k_plus_plus",
    "membership_auc_loss": "loss",
    "membership_auc_zlib": "zlib",
}
"""OpenUnlearning's four membership attacks, and what of a row each ranks by."""

Rows = Sequence[Mapping[str, Any]]
Numbers = dict[str, float | None]
LogRatios = dict[Convention, list[float]]


def reference(rows: Rows) -> LogRatios | None:
    """Return the truth ratios of a retrained model, as a reference for others."""
    return log_truth_ratios(_of(rows, "forget"))


def summarise(rows: Rows, retrained: LogRatios | None = None) -> Numbers:
    """Return the numbers of TOFU's protocol, memorisation and membership, from `evaluate`'s rows.

    `docs/metrics.md` explains the keys. Quotients have OpenUnlearning's guard in the denominator,
    and TOFU's under `..._tofu`. `S_truth_ratio_prob_mean` is `truth_share`; `forget_guarded` the
    share of questions where the guard has replaced the probability of the correct answer;
    `certificate_raw` has no floor at 0. Without `retrained` there is no forget quality.
    """
    numbers: Numbers = {}
    for name in SUBSETS:
        of_set = _subset(name, _of(rows, name))
        numbers |= {f"{name}_{key}": value for key, value in of_set.items()}
    forget = _of(rows, "forget")
    rouges = [numbers[f"{name}_rouge"] for name in ("retain", *NEIGHBOURS)]
    known = [rouge for rouge in rouges if rouge is not None]
    numbers["rouge_hm"] = metrics.harmonic_mean(known) if len(known) == len(rouges) else None
    for suffix in SUFFIXES.values():
        numbers[f"model_utility{suffix}"] = _model_utility(numbers, suffix)
    numbers |= _forget_quality(log_truth_ratios(forget), retrained)
    numbers |= _memorization(forget) | _membership(rows)
    numbers |= {f"retain_{k}": v for k, v in _strengths(_of(rows, "retain")).items()}
    return numbers


def log_truth_ratios(rows: Rows) -> LogRatios | None:
    """Return `log R` of each row by convention, `None` if a row has no perturbed answers."""
    if not rows or not all(row["perturbed_losses"] for row in rows):
        return None
    pairs = [(_correct(row), row["perturbed_losses"]) for row in rows]
    return {
        name: [float(truth.log_truth_ratio(*pair, guard=guard)) for pair in pairs]
        for name, guard in GUARDS.items()
    }


def _of(rows: Rows, subset: str) -> Rows:
    return [row for row in rows if row["subset"] == subset]


def _correct(row: Mapping[str, Any]) -> float:
    """Return the loss of the correct answer: of the paraphrased one if there is one."""
    paraphrased = row["paraphrased_loss"]
    return row["loss"] if paraphrased is None else paraphrased


def _subset(name: str, rows: Rows) -> Numbers:
    ratios = log_truth_ratios(rows)
    numbers: Numbers = {
        key: _mean(row[key] for row in rows)
        for key in ("loss", "probability", "rouge", "rouge1", "exact_match")
    }
    for convention, suffix in SUFFIXES.items():
        guard = GUARDS[convention]
        if name in NEIGHBOURS:
            numbers[f"probability{suffix}"] = _normalised(rows, guard)
        known = ratios[convention] if ratios else None
        numbers[f"truth_ratio{suffix}"] = None if known is None else _aggregate(name, known, guard)
    shares = [truth.truth_share(_correct(r), r["perturbed_losses"]) for r in rows if ratios]
    return numbers | {"truth_ratio_prob_mean": _mean(shares)}


def _aggregate(name: str, log_ratios: Sequence[float], guard: float) -> float:
    if name == "forget":
        return truth.forget_truth_ratio(log_ratios, guard)
    return truth.utility_truth_ratio(log_ratios)


def _normalised(rows: Rows, guard: float) -> float | None:
    if not all(row["perturbed_losses"] for row in rows):
        return None
    return _mean(
        float(truth.normalised_probability(row["loss"], row["perturbed_losses"], guard))
        for row in rows
    )


def _model_utility(numbers: Numbers, suffix: str) -> float | None:
    parts = [
        numbers.get(f"{name}_{kind}{suffix}", numbers[f"{name}_{kind}"])
        for name in ("retain", *NEIGHBOURS)
        for kind in ("probability", "rouge", "truth_ratio")
    ]
    known = [part for part in parts if part is not None]
    return metrics.model_utility(known) if len(known) == len(parts) else None


def _forget_quality(ours: LogRatios | None, theirs: LogRatios | None) -> Numbers:
    numbers: Numbers = {}
    for convention, suffix in SUFFIXES.items():
        keys = f"forget_quality{suffix}", f"forget_quality_log10{suffix}"
        numbers |= dict.fromkeys(keys)
        if ours and theirs:
            pair = ours[convention], theirs[convention]
            p = metrics.forget_quality(*pair), metrics.log10_forget_quality(*pair)
            numbers |= dict(zip(keys, p, strict=True))
    return numbers


def _memorization(forget: Rows) -> Numbers:
    paraphrased = [row["paraphrased_loss"] for row in forget]
    known = [] if None in paraphrased else paraphrased
    return {
        **_strengths(forget),
        # Clamped per sequence: it stays a lower bound, and one remembered answer (phi down to
        # -1/tau) does not outweigh the others.
        "certificate": _mean(max(row["certificate"], 0.0) for row in forget),
        "certificate_raw": _mean(row["certificate"] for row in forget),
        "paraphrased_probability": _mean(metrics.probability(known).tolist()),
        "forget_guarded": _mean(metrics.probability(_correct(r)) < EPSILON for r in forget),
    }


def _strengths(rows: Rows) -> Numbers:
    keys = ("extraction_strength", "extraction_strength_ou", "exact_memorization")
    # An answer without a token of its own has no share of exact ones; OpenUnlearning leaves it out.
    return {key: _mean(row[key] for row in rows if not np.isnan(row[key])) for key in keys}


def _membership(rows: Rows) -> Numbers:
    forget, holdout = _of(rows, "forget"), _of(rows, "holdout")
    if not forget or not holdout:
        return dict.fromkeys(ATTACKS)
    return {
        name: membership_auc(
            (row[key] for row in forget),
            (row[key] for row in holdout),
            convention="openunlearning",
        )
        for name, key in ATTACKS.items()
    }


def _mean(values: Iterable[float | None]) -> float | None:
    """Return their mean, `None` for no values or if one is missing."""
    known = list(values)
    return None if not known or None in known else float(np.mean(known))
