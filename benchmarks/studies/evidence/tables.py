"""The tables of `results/README.md`, each from recorded lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median

from benchmarks.methods import CONTROL
from benchmarks.report.results import Row
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
from benchmarks.studies.evidence.recorded import Recorded

SPLITS = ("forget01", "forget05", "forget10")
POINTS = ("matched", "matched8", "recommended")
ALM = "+alm"
PARTS = ("saul", "saul_no_alm", "saul_no_sam", "saul_no_alm_no_sam", "dual_adamw+alm", "dual_adamw")
SEPARATE = ("single_adamw+alm", "single_adamw")

Column = tuple[str, str, int]
ROUGE: Column = ("forget_rouge", "forget ROUGE-L", 2)
RETAINED: Column = ("retain_exact_match", "retain exact", 2)
UTILITY: Column = ("model_utility", "MU", 3)
OPEN: Column = ("gate_open", "gate open", 2)
COLUMNS: tuple[Column, ...] = (
    *(ROUGE, ("forget_exact_match", "forget exact", 2), ("certificate", "certificate", 2)),
    *(RETAINED, UTILITY, (QUALITY, "log10 FQ (OU)", 1), ("membership_auc", "AUC", 2), OPEN),
)
Line = tuple[str, Sequence[str], Sequence[Row]]
"""A method, what is told of its runs, and the runs."""


def numbers(rows: Sequence[Row], key: str, digits: int) -> str:
    """One cell; with its marks, if it is of forget quality."""
    text = spread([row.get(key) for row in rows], digits)
    return marked(text, rows) if key == QUALITY and text != MISSING else text


def table(head: Sequence[str], columns: Sequence[Column], lines: Iterable[Line]) -> str:
    """A line for each method that was run: what is told of it, and the mean of every column."""
    cells = (
        [name_of(method), *told, *(numbers(rows, key, digits) for key, _, digits in columns)]
        for method, told, rows in lines
        if rows
    )
    return markdown([*head, *(title for _, title, _ in columns)], cells)


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
        others = {*REFERENCE_LABELS} - {stage.methods}  # the control alone is no reference
        rows = [r for r in found.lines[stage.name] if r["method"] not in others]
        seeds = len({row["seed"] for row in rows})
        options = f"`{' '.join(stage.more)}`" if stage.more else ""
        lines.append([f"{stage.name} {options}", str(len(rows)), f"{seeds} of {stage.seeds}"])
    return markdown(["table, and its own options", "runs recorded", "seeds begun"], lines)


def pairs_at(point: str) -> Callable[[Recorded], str]:
    """Every method beside itself with the controller, seed by seed, on all splits."""
    head = ["method", "split", "seeds", "MU", "MU `+ALM`", "difference", "better on"]
    head += ["forget ROUGE-L", "with `+ALM`", "retain exact", "with `+ALM`"]

    def lines(found: Recorded) -> Iterator[list[str]]:
        for split in SPLITS:
            yield from _pairs(found, split, point)

    return lambda found: markdown(head, lines(found))


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

    def lines(found: Recorded) -> Iterator[Line]:
        for split in SPLITS:
            stage, control = f"{split}-{point}", f"{split}-control-{point}"
            alone = found.of(control, CONTROL)
            for method in found.methods(stage):
                rows = found.of(stage, method)
                yield method, (split, str(len(rows))), rows
                if method == "retrained":
                    yield CONTROL, (split, str(len(alone))), alone  # nothing where it stands below

    return lambda found: table(["method", "split", "seeds"], COLUMNS, lines(found))


def parts(found: Recorded) -> str:
    """SAUL with one part after another taken away."""
    lines = (
        (method, (f"{split}, {point}",), found.of(f"{split}-{point}", method))
        for split in SPLITS
        for point in POINTS
        for method in (*PARTS, *SEPARATE)
    )
    return table(["", "split and point"], (UTILITY, RETAINED, ROUGE, OPEN), lines)


def thresholds(found: Recorded) -> str:
    """Table what alpha does to the two methods that are asked."""
    stages = ["forget01-alpha-10", "forget01-alpha-20", "forget01-alpha-30"]
    stages += ["forget01-alpha-never_seen", "forget01-recommended"]
    columns = (("forget_loss", "forget loss", 2), ("overshoot", "overshoot", 2), *COLUMNS)
    runs = (
        (method, stage, found.of(stage, method))
        for method in ("dual_adamw+alm", "saul")
        for stage in stages
    )
    lines = ((method, (threshold(stage, rows),), rows) for method, stage, rows in runs if rows)
    return table(["method", "threshold"], columns, lines)


def under(of: str, head: str, stages: Mapping[str, str]) -> Callable[[Recorded], str]:
    """Each method of a stage at one stage after the other, called by what is special there."""
    columns = (UTILITY, RETAINED, ROUGE, ("lambda", "last λ", 2), OPEN)

    def lines(found: Recorded) -> Iterator[list[str]]:
        for method in (m for m in found.methods(of) if m not in REFERENCE_LABELS):
            for stage, told in stages.items():
                if rows := found.of(stage, method):
                    cells = [numbers(rows, key, digits) for key, _, digits in columns]
                    yield [name_of(method), told, str(len(rows)), *cells, statuses(rows)]

    heads = ["method", head, "seeds", *(title for _, title, _ in columns), "status at the end"]
    return lambda found: markdown(heads, lines(found))


# Methods that raise a loss of their own, under four targets.
reach = under(
    "forget01-others-tokens",
    "target",
    {
        "forget01-recommended": "95 % of the answers fail",
        "forget01-others-certificate": "95 % of the answers certified",
        "forget01-others-tokens": "half of the tokens certified",
        "forget01-others-never_seen": "never-seen level in nats",
    },
)

# forget05 as the preset has it, with a target of more words, and with more steps.
asked_more = under(
    "forget05-gentle",
    "settings",
    {
        "forget05-recommended": "recommended",
        "forget05-gentle": "three quarters of the tokens certified, half the rate",
        "forget05-longer": "recommended, twice the steps",
    },
)

# forget05 with one part of the controller changed at a time.
varied = under(
    "forget05-varied-nothing",
    "changed",
    {
        "forget05-varied-nothing": "nothing",
        "forget05-varied-placement": "weight on the step, or ten times as heavy",
        "forget05-varied-multiplier": "λ₀ = 1",
        "forget05-varied-cadence": "λ updated every fifth step",
    },
)

# The search on forget05 by two kinds of targets, eight settings each.
words = under(
    "forget05-matched8",
    "targets searched",
    {
        "forget05-matched8": "those of the preset",
        "forget05-words-certified": "words, λ on the step",
        "forget05-words-missed": "words",
    },
)


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
