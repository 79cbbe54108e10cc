"""The tables of `results/README.md`, each from recorded lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from benchmarks.report.results import Row, read_lines
from benchmarks.report.tables import (
    MISSING,
    REFERENCE_LABELS,
    markdown,
    name_of,
    spread,
    statuses,
)
from benchmarks.studies.evidence.plan import PLAN
from benchmarks.studies.evidence.quality import (
    FLOOR,
    GUARD,
    QUALITY,
    is_at_floor,
    is_guarded,
    marked,
)

SPLITS = ("forget01", "forget05", "forget10")
POINTS = ("matched", "matched8", "recommended")
ALM = "+alm"
PARTS = ("saul", "saul_no_alm", "saul_no_sam", "saul_no_alm_no_sam", "dual_adamw+alm", "dual_adamw")
SEPARATE = ("single_adamw+alm", "single_adamw")

Column = tuple[str, str, int]
COLUMNS: tuple[Column, ...] = (
    ("forget_rouge", "forget ROUGE-L", 2),
    ("forget_exact_match", "forget exact", 2),
    ("certificate", "certificate", 2),
    ("retain_exact_match", "retain exact", 2),
    ("model_utility", "MU", 3),
    (QUALITY, "log10 FQ (OU)", 1),
    ("membership_auc", "AUC", 2),
    ("gate_open", "gate open", 2),
)


@dataclass(frozen=True)
class Recorded:
    """The records of every stage.

    Attributes:
        lines: The results of each, by name.
        steps: What its controllers did, step by step.
    """

    lines: dict[str, list[Row]]
    steps: dict[str, list[Row]]

    def of(self, stage: str, method: str) -> list[Row]:
        """The runs of a method, by seed."""
        found = [row for row in self.lines.get(stage, []) if row["method"] == method]
        return sorted(found, key=lambda row: row["seed"])

    def methods(self, stage: str) -> list[str]:
        """List the methods that were run, in the order of the lines."""
        return list(dict.fromkeys(row["method"] for row in self.lines.get(stage, [])))


def read(folder: Path, stages: Iterable[str]) -> Recorded:
    """The recorded lines of the stages; none where there is nothing yet."""
    names = list(stages)
    return Recorded(
        {name: read_lines(folder / name / "results.jsonl") for name in names},
        {name: read_lines(folder / name / "control.jsonl") for name in names},
    )


def numbers(rows: Sequence[Row], key: str, digits: int) -> str:
    """One cell; with its marks, if it is of forget quality."""
    text = spread([row.get(key) for row in rows], digits)
    return marked(text, rows) if key == QUALITY and text != MISSING else text


def guard(found: Recorded) -> str:
    """Count the runs beyond the guard, and at the smallest forget quality, stage by stage."""
    lines = []
    for stage in PLAN:
        rows = [r for r in found.lines[stage.name] if r["method"] not in REFERENCE_LABELS]
        rows = [row for row in rows if row.get(QUALITY) is not None]
        counts = [len(rows), *(sum(map(of, rows)) for of in (is_guarded, is_at_floor))]
        if any(counts[1:]):
            lines.append([stage.name, *map(str, counts)])
    return markdown(["table", "runs", f"beyond {GUARD:.0f} nats", f"at {FLOOR:.1f}"], lines)


def commands(found: Recorded) -> str:
    """Every table, how much of it is recorded, and what is special in its command."""
    lines = []
    for stage in PLAN:
        rows = [r for r in found.lines[stage.name] if r["method"] not in REFERENCE_LABELS]
        seeds = len({row["seed"] for row in rows})
        options = f"`{' '.join(stage.more)}`" if stage.more else ""
        lines.append([f"{stage.name} {options}", str(len(rows)), f"{seeds} of {stage.seeds}"])
    return markdown(["table, and its own options", "runs recorded", "seeds begun"], lines)


def pairs_at(point: str) -> Callable[[Recorded], str]:
    """Every method beside itself with the controller, seed by seed, on all splits."""
    head = ["method", "split", "seeds", "MU", "MU `+ALM`", "difference", "better on"]
    head += ["forget ROUGE-L", "with `+ALM`", "retain exact", "with `+ALM`"]

    def table(found: Recorded) -> str:
        return markdown(head, (line for split in SPLITS for line in _pairs(found, split, point)))

    return table


def _pairs(found: Recorded, split: str, point: str) -> Iterator[list[str]]:
    stage = f"{split}-{point}"
    for method in found.methods(stage):
        plain, controlled = paired(found, stage, method)
        if plain:
            ours, theirs = (mu(rows) for rows in (controlled, plain))
            gains = [a - b for a, b in zip(ours, theirs, strict=True)]
            better = f"{sum(gain > 0 for gain in gains)} of {len(gains)}"
            keys = ("forget_rouge", "retain_exact_match")
            cells = [numbers(rows, key, 2) for key in keys for rows in (plain, controlled)]
            differences = [spread(theirs, 3), spread(ours, 3), spread(gains, 3, "+")]
            yield [name_of(method), split, str(len(gains)), *differences, better, *cells]


def paired(found: Recorded, stage: str, method: str) -> tuple[list[Row], list[Row]]:
    """The runs of a method without and with the controller on the seeds that both have."""
    plain, controlled = found.of(stage, method), found.of(stage, method + ALM)
    seeds = {row["seed"] for row in plain} & {row["seed"] for row in controlled}
    kept = [[row for row in rows if row["seed"] in seeds] for rows in (plain, controlled)]
    return kept[0], kept[1]


def mu(rows: Iterable[Row]) -> list[float]:
    """Model utility; a harmonic mean of nothing is 0."""
    return [row.get("model_utility") or 0.0 for row in rows]


SETS = (
    ("retain_rouge", "retain"),
    ("real_authors_rouge", "real authors"),
    ("world_facts_rouge", "world facts"),
)


def gains(found: Recorded) -> str:
    """Table what the controller adds to the words said of each set that is to be kept."""
    head = ["method", "split and point", *(f"{title} ROUGE-L" for _, title in SETS)]
    lines = []
    for stage in (f"{split}-{point}" for split in SPLITS for point in POINTS):
        for method in found.methods(stage):
            plain, controlled = paired(found, stage, method)
            pairs = list(zip(controlled, plain, strict=True))
            cells = [spread([a[key] - b[key] for a, b in pairs], 2, "+") for key, _ in SETS]
            if pairs:
                lines.append([name_of(method), stage.replace("-", ", "), *cells])
    return markdown(head, lines)


def everything_at(point: str) -> Callable[[Recorded], str]:
    """All methods of all splits."""
    head = ["method", "split", "seeds", *(title for _, title, _ in COLUMNS)]

    def table(found: Recorded) -> str:
        lines = []
        for split in SPLITS:
            stage = f"{split}-{point}"
            for method in found.methods(stage):
                rows = found.of(stage, method)
                cells = [numbers(rows, key, digits) for key, _, digits in COLUMNS]
                lines.append([name_of(method), split, str(len(rows)), *cells])
        return markdown(head, lines)

    return table


def parts(found: Recorded) -> str:
    """SAUL with one part after another taken away."""
    head = ["", "split and point", "MU", "retain exact", "forget ROUGE-L", "gate open"]
    lines = []
    for split in SPLITS:
        for point in POINTS:
            stage = f"{split}-{point}"
            for method in (*PARTS, *SEPARATE):
                if rows := found.of(stage, method):
                    keys = ("model_utility", "retain_exact_match", "forget_rouge", "gate_open")
                    cells = [numbers(rows, key, 3 if key == "model_utility" else 2) for key in keys]
                    lines.append([name_of(method), f"{split}, {point}", *cells])
    return markdown(head, lines)


def thresholds(found: Recorded) -> str:
    """Table what alpha does to the two methods that are asked."""
    stages = ["forget01-alpha-10", "forget01-alpha-20", "forget01-alpha-30"]
    stages += ["forget01-alpha-never_seen", "forget01-recommended"]
    extra: tuple[Column, ...] = (("forget_loss", "forget loss", 2), ("overshoot", "overshoot", 2))
    columns = (*extra, *COLUMNS)
    head = ["method", "threshold", *(title for _, title, _ in columns)]
    lines = []
    for method in ("dual_adamw+alm", "saul"):
        for stage in stages:
            if rows := found.of(stage, method):
                named = threshold(stage, rows)
                cells = [numbers(rows, key, digits) for key, _, digits in columns]
                lines.append([name_of(method), named, *cells])
    return markdown(head, lines)


def reach(found: Recorded) -> str:
    """Methods that raise a loss of their own, under four targets."""
    stages = {
        "forget01-recommended": "95 % of the answers fail",
        "forget01-others-certificate": "95 % of the answers certified",
        "forget01-others-tokens": "half of the tokens certified",
        "forget01-others-never_seen": "never-seen level in nats",
    }
    methods = [m for m in found.methods("forget01-others-tokens") if m.endswith(ALM)]
    return _under(found, methods, "target", stages)


def asked_more(found: Recorded) -> str:
    """forget05 as the preset has it, with a target of more words, and with more steps."""
    stages = {
        "forget05-recommended": "recommended",
        "forget05-gentle": "three quarters of the tokens certified, half the rate",
        "forget05-longer": "recommended, twice the steps",
    }
    return _under(found, found.methods("forget05-gentle"), "settings", stages)


def varied(found: Recorded) -> str:
    """forget05 with one part of the controller changed at a time."""
    stages = {
        "forget05-varied-nothing": "nothing",
        "forget05-varied-placement": "weight on the step, or ten times as heavy",
        "forget05-varied-multiplier": "λ₀ = 1",
        "forget05-varied-cadence": "λ updated every fifth step",
    }
    return _under(found, found.methods("forget05-varied-nothing"), "changed", stages)


def words(found: Recorded) -> str:
    """The search on forget05 by two kinds of targets, eight settings each."""
    stages = {
        "forget05-matched8": "those of the preset",
        "forget05-words-certified": "words, λ on the step",
        "forget05-words-missed": "words",
    }
    return _under(found, found.methods("forget05-matched8"), "targets searched", stages)


def _under(found: Recorded, methods: Iterable[str], head: str, stages: Mapping[str, str]) -> str:
    """Each method at one stage after the other, called by what is special there."""
    keys = (("model_utility", 3), ("retain_exact_match", 2), ("forget_rouge", 2))
    keys = (*keys, ("lambda", 2), ("gate_open", 2))
    heads = ["MU", "retain exact", "forget ROUGE-L", "last λ", "gate open", "status at the end"]
    lines = []
    for method in methods:
        for stage, told in stages.items():
            if (rows := found.of(stage, method)) and method not in REFERENCE_LABELS:
                cells = [numbers(rows, key, digits) for key, digits in keys]
                lines.append([name_of(method), told, str(len(rows)), *cells, statuses(rows)])
    return markdown(["method", head, "seeds", *heads], lines)


def threshold(stage: str, rows: Sequence[Row]) -> str:
    """Say in words what the constraint asked for."""
    level = stage.rpartition("-")[2]
    if level == "recommended":
        return "half of the tokens certified"
    if level == "never_seen":
        return f"never-seen level, {fmean(row['alpha'] for row in rows):.1f} nats"
    return f"{level} nats"


def control(found: Recorded) -> str:
    """Table lambda's way and the open gate of every method with a controller."""
    head = ["method", "split", "highest λ", "last λ", "gate open", "first met at step"]
    head += ["closed for good by step", "status at the end"]
    lines = []
    for split in SPLITS:
        stage = f"{split}-recommended"
        for method in found.methods(stage):
            steps = [row for row in found.steps[stage] if row["method"] == method]
            rows = found.of(stage, method)
            if steps:
                peaks = [max(v for v in row["lambda"] if v is not None) for row in steps]
                last = [last_open(row["weight"]) for row in steps]
                lines.append(
                    [
                        *(name_of(method), split, spread(peaks, 2), numbers(rows, "lambda", 3)),
                        *(numbers(rows, "gate_open", 2), numbers(rows, "met_at", 0)),
                        *(spread(last, 0), statuses(rows)),
                    ]
                )
    return markdown(head, lines)


def last_open(weights: Sequence[float | None]) -> float:
    """The last step whose gate was open; 0 if none was."""
    return max((at for at, weight in enumerate(weights, 1) if weight), default=0)


def cost(found: Recorded) -> str:
    """Training time relative to Dual AdamW, seed by seed in the same run."""
    stage = "forget01-recommended"
    base = {row["seed"]: row["seconds"] for row in found.of(stage, "dual_adamw")}
    lines = []
    for method in found.methods(stage):
        ratios = [r["seconds"] / base[r["seed"]] for r in found.of(stage, method) if r["seconds"]]
        if ratios:
            lines.append([name_of(method), f"{median(ratios):.2f}", str(len(ratios))])
    return markdown(["method", "times Dual AdamW (median)", "seeds"], lines)


def attacks(found: Recorded) -> str:
    """Table what each attack leaves of forgetting: loss of the answers, and words of them said."""
    stage = "forget01-attacks"
    tried = [pair for row in found.lines[stage] for pair in row["attacks"].items()]
    names = list(dict.fromkeys(name for name, seen in tried if "after" in seen))
    lines = []
    for method in found.methods(stage):
        results = [row["attacks"] for row in found.of(stage, method)]
        cells = [f"{_after(results, n, 'loss')}; {_after(results, n, 'rouge')}" for n in names]
        lines.append([name_of(method), str(len(results)), *cells])
    return markdown(["loss; ROUGE-L", "seeds", *names], lines)


def _after(results: Sequence[Row], attack: str, key: str) -> str:
    return spread([found[attack]["after"][key] for found in results], 2)
