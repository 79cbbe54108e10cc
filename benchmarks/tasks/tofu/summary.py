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

Rows = Sequence[Mapping[str, Any]]
Numbers = dict[str, float | None]
LogRatios = dict[Convention, list[float]]


def reference(rows: Rows) -> LogRatios | None:
    """Return the truth ratios of a retrained model, as a reference for others."""
    return log_truth_ratios(_of(rows, "forget"))


def summarise(rows: Rows, retrained: LogRatios | None = None) -> Numbers:
    """Return the numbers of TOFU's protocol, memorisation and membership, from `evaluate`'s rows.

    `docs/metrics.md` explains the keys. Quotients have OpenUnlearning's guard in the denominator,
    and TOFU's under `..._tofu`. `forget_guarded` is the share of questions where the guard has
    replaced the probability of the correct answer. Without `retrained` there is no forget quality.
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
    return numbers | _memorization(forget) | _membership(rows)


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
        for key in ("loss", "probability", "rouge", "exact_match")
    }
    for convention, suffix in SUFFIXES.items():
        guard = GUARDS[convention]
        if name in NEIGHBOURS:
            numbers[f"probability{suffix}"] = _normalised(rows, guard)
        known = ratios[convention] if ratios else None
        numbers[f"truth_ratio{suffix}"] = None if known is None else _aggregate(name, known, guard)
    return numbers


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
        "extraction_strength": _mean(row["extraction_strength"] for row in forget),
        # Clamped per sequence: it stays a lower bound, and one remembered answer (phi down to
        # -1/tau) does not outweigh the others.
        "certificate": _mean(max(row["certificate"], 0.0) for row in forget),
        "paraphrased_probability": _mean(metrics.probability(known).tolist()),
        "forget_guarded": _mean(metrics.probability(_correct(r)) < EPSILON for r in forget),
    }


def _membership(rows: Rows) -> Numbers:
    forget, holdout = _of(rows, "forget"), _of(rows, "holdout")
    if not forget or not holdout:
        return {"membership_auc": None}
    scores = ([row["min_k"] for row in of] for of in (forget, holdout))
    return {"membership_auc": membership_auc(*scores, convention="openunlearning")}


def _mean(values: Iterable[float | None]) -> float | None:
    """Return their mean, `None` for no values or if one is missing."""
    known = list(values)
    return None if not known or None in known else float(np.mean(known))
