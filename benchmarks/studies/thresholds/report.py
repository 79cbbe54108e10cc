"""Tables and figures of the thresholds, from the lines of its results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.report.results import ResultsFolder, Row
from benchmarks.report.tables import MISSING, Cell, included, markdown, statuses
from benchmarks.studies.thresholds.figures import aimed, draw
from benchmarks.studies.thresholds.variants import PARTS, REACHED
from benchmarks.tasks.muse.metrics import privleak
from torch_alm.unlearning.files import write_text

Number = tuple[str, str, int]
NUMBERS: tuple[Number, ...] = (
    ("forget_exact_match", "forget exact", 3),
    ("forget_loss", "forget loss", 2),
    ("forget_quality_log10", "log FQ (OU)", 1),
    ("membership_auc", "AUC", 2),
    ("privleak", "PrivLeak", 0),
    ("gate_open", "open", 2),
    ("overshoot", "overshoot", 2),
    ("met_at", "met at", 0),
)
"""Means over learning rates and seeds: the number, its heading, its digits."""

BEYOND: tuple[Number, ...] = (
    ("retain_probability", "retain probability", 3),
    ("forget_exact_match", "forget exact", 3),
    ("forget_loss", "forget loss", 2),
    ("gate_open", "open", 2),
    ("overshoot", "overshoot of a step", 3),
    ("overshoot_epoch", "of an epoch's mean", 3),
    ("met_at", "met at", 0),
)
"""Of the part `overshoot`."""

FORGOTTEN = 0.025
RECOGNISED = 0.15
RULE = (
    f"Of what forgets at every learning rate (at most {FORGOTTEN:.1%} of the forget answers exact, "
    f"the membership AUC at most {RECOGNISED} above the retrained model's), what keeps most retain "
    "answers exact at the learning rate where it keeps fewest."
)

MET = ("released", "satisfied")
RULE_OF_OTHERS = (
    f"Of the targets at which every method forgets (at most {FORGOTTEN:.1%} of the answers exact), "
    "the one that most methods meet at the end; of equals, the higher mean utility. A constraint "
    "that a method cannot meet never lets go of it. (The first half of the rule was added when the "
    "table was there: without it the loss of held-out text is picked, with three methods that "
    "remember.)"
)


def publish(path: Path, part: str) -> None:
    """Write `report.md` and the figures of a folder."""
    folder = ResultsFolder(path)
    text = page(folder, part)
    write_text(path / "report.md", text)
    draw(folder.rows(), labels_of(folder, part), part, path)
    print(text)


def page(folder: ResultsFolder, part: str) -> str:
    """`report.md`, from the lines of a folder; with the choice where there is one."""
    rows, labels = with_privleak(folder.rows()), labels_of(folder, part)
    text = report(rows, labels, part)
    if part == "choose":
        text += f"\n{RULE}\n\nChosen: {labels.get(choice(rows) or '', 'nothing')}.\n"
    if part == "others":
        chosen = REACHED[choice_for_others(rows)][0]
        found = f"{reach_table(rows)}\n\n{RULE_OF_OTHERS}\n\nChosen: {chosen}."
        text += f"\n{included(found, 'reached')}\n"
    return text


def choice_for_others(rows: Sequence[Row]) -> str:
    """The target that `RULE_OF_OTHERS` picks, of all where none makes every method forget."""
    runs = {name: aimed(rows, name) for name in REACHED}
    good = [name for name, mine in runs.items() if mine and forgotten(mine) == len(mine)]
    return max(good or REACHED, key=lambda name: reached(runs[name]))


def reached(rows: Sequence[Row]) -> tuple[int, float]:
    """Count the runs that ended with the constraint met, and take the mean utility of all."""
    met = sum(row.get("status") in MET for row in rows)
    return met, fmean([row.get("model_utility") or 0.0 for row in rows] or [0.0])


def forgotten(rows: Sequence[Row]) -> int:
    """Count the runs that left next to no answer word for word."""
    return sum((row.get("forget_exact_match") or 0.0) <= FORGOTTEN for row in rows)


def reach_table(rows: Sequence[Row]) -> str:
    """A line per target, for what the rule goes by."""
    head = ["target", f"forget ({FORGOTTEN:.1%} exact)", "met at the end", "mean MU"]
    lines = []
    for name, (label, _) in REACHED.items():
        mine = aimed(rows, name)
        met, utility = reached(mine)
        shares = [f"{count} of {len(mine)}" for count in (forgotten(mine), met)]
        lines.append([label, *shares, f"{utility:.3f}"])
    return markdown(head, lines)


def labels_of(folder: ResultsFolder, part: str) -> dict[str, str]:
    """The variants of a part and their names."""
    split = json.loads(folder.settings.read_text())["split"]
    return {one.key: one.label for one in PARTS[part](split)}


def with_privleak(rows: Sequence[Row]) -> list[Row]:
    """The rows with PrivLeak relative to the retrained model, where there is one."""
    levels = [row["membership_auc"] for row in rows if row["method"] == "retrained"]
    level = levels[0] if levels else None
    return [row | {"privleak": _privleak(row.get("membership_auc"), level)} for row in rows]


def _privleak(auc: float | None, retrained: float | None) -> float | None:
    """In MUSE's orientation, which is the other way round."""
    return None if auc is None or retrained is None else privleak(1 - auc, 1 - retrained)


def report(rows: Sequence[Row], labels: dict[str, str], part: str) -> str:
    """The table between the marks is also part of the documentation."""
    lines = [
        f"# Thresholds: {part}\n",
        f"Written by `python -m benchmarks.studies.thresholds {part}` from "
        "`results.jsonl`; the settings are in `settings.json`.\n",
        included(table(rows, labels, BEYOND if part == "overshoot" else NUMBERS)),
        *failures(rows, labels),
    ]
    return "\n".join(lines) + "\n"


def table(rows: Sequence[Row], labels: dict[str, str], numbers: Sequence[Number]) -> str:
    """Table what is kept at each learning rate, and what is forgotten over all of them."""
    rates = sorted({row["rate"] for row in rows if "rate" in row})
    is_search = all(row.get("model_utility") is None for row in rows)
    kept = ("retain_exact_match", "retain exact") if is_search else ("model_utility", "MU")
    head = ["", *(f"{kept[1]} at {rate:g}" for rate in rates), *(name for _, name, _ in numbers)]
    head.append("status at the end")
    references = ("original", "retrained")
    lines = [reference(name, rows, kept[0], len(rates), numbers) for name in references]
    for key, label in labels.items():
        mine = [row for row in rows if row.get("variant") == key]
        if mine:
            per_rate = [mean((r for r in mine if r["rate"] == rate), kept[0]) for rate in rates]
            overall = [Cell(mean(mine, name)).text(digits) for name, _, digits in numbers]
            lines.append([label, *(Cell(v).text(3) for v in per_rate), *overall, statuses(mine)])
    return markdown(head, lines)


def reference(
    name: str, rows: Sequence[Row], kept: str, rates: int, numbers: Sequence[Number]
) -> list[str]:
    """The line of a model that was not unlearned."""
    mine = [row for row in rows if row["method"] == name]
    overall = [Cell(mean(mine, key)).text(digits) for key, _, digits in numbers]
    return [f"{name} model", *[Cell(mean(mine, kept)).text(3)] * rates, *overall, MISSING]


def mean(rows: Iterable[Row], key: str) -> float | None:
    """Over the rows that have the number; what was never met has no `met_at`."""
    values = [row[key] for row in rows if row.get(key) is not None]
    return fmean(values) if values else None


def failures(rows: Sequence[Row], labels: dict[str, str]) -> list[str]:
    """The runs that could not be made, and why."""
    return [
        f"\nNot run: {labels.get(row['variant'], row['variant'])} at {row['rate']:g}, seed "
        f"{row['seed']}: {row['failed']}"
        for row in rows
        if row.get("failed")
    ]


def choice(rows: Sequence[Row]) -> str | None:
    """The key of the variant that `RULE` picks; None if none forgets at every rate."""
    retrained = mean((row for row in rows if row["method"] == "retrained"), "membership_auc")
    keys = dict.fromkeys(row["variant"] for row in rows if "variant" in row)
    found = {key: [row for row in rows if row.get("variant") == key] for key in keys}
    good = {key: mine for key, mine in found.items() if forgets(mine, retrained)}
    return max(good, key=lambda key: _worst(good[key], "retain_exact_match", min), default=None)


def forgets(rows: Sequence[Row], retrained: float | None) -> bool:
    """Tell whether every learning rate forgets, in the mean over its seeds."""
    if retrained is None or any(row.get("failed") for row in rows):
        return False
    exact, auc = (_worst(rows, key, max) for key in ("forget_exact_match", "membership_auc"))
    return exact <= FORGOTTEN and auc <= retrained + RECOGNISED


def _worst(rows: Sequence[Row], key: str, of: Callable[[list[Any]], Any]) -> float:
    """The worst of the means over seeds, one per learning rate."""
    rates = {row["rate"] for row in rows}
    return of([mean((r for r in rows if r["rate"] == rate), key) for rate in rates])
