"""SAM at equal forgetting: with and without, on either side, over a decade of radii.

    python -m benchmarks.studies.operating_point.radii                            the embedded world
    python -m benchmarks.studies.operating_point.radii --data DIR --split forget01
    python -m benchmarks.studies.operating_point.radii --page                     only the tables

All runs have one target, the token certificate of the preset, at a rate at which the retain side
alone keeps its utility; so they differ in SAM and not in how much is forgotten. `attacks` then
tries to bring the answers back. Differences are paired by seed. A run that was interrupted goes on
where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from pathlib import Path

from benchmarks.engine.options import script_parser
from benchmarks.report.paired import Pair, interval
from benchmarks.report.results import Row, read_lines
from benchmarks.report.tables import included, markdown
from benchmarks.studies import attacks
from benchmarks.studies.evidence.__main__ import record
from benchmarks.studies.evidence.plan import FEWER, GATE, SHARED, target
from benchmarks.studies.operating_point.__main__ import KEPT
from benchmarks.studies.operating_point.plan import WORLD
from torch_alm.unlearning.files import write_text

RADII = ("0.01", "0.03", "0.1")
SIDES = {"both": (1, 1), "forget": (1, 0), "retain": (0, 1)}
"""1 for a side that has the radius: the forget side, the retain side."""

RATE = "3e-4"
TARGET = target("token_certificate", "0.5")
CONTROLLER = ("--multiplier", "0", *GATE)
LOSS, EXACT = "loss", "exact_match"
COLUMNS = {
    "no attack": ("int8", "before", LOSS),
    "relearn forget": ("relearn forget, 0.001", "after", LOSS),
    "relearn retain": ("relearn retain, 0.001", "after", LOSS),
    "int4": ("int4", "after", LOSS),
    "paraphrase": ("paraphrase", "after", LOSS),
    "prefix": ("answer prefix", "after", LOSS),
    "retain, word for word": ("retain", EXACT),
}
RELEARNT = "lost to relearning"
"""The part of the loss that relearning the forget set takes away."""
SHOWN = (*COLUMNS, RELEARNT)


@dataclass(frozen=True)
class Run:
    """One setting of both radii.

    Attributes:
        split: Of TOFU, or `world`.
        side: Of `SIDES`, or `none`.
        radius: Of `RADII`; 0 for none.
    """

    split: str
    side: str
    radius: str

    @property
    def folder(self) -> str:
        """Of its runs."""
        return f"{self.split}-sam-{self.side}-{self.radius}"

    def arguments(self, data: Path | None, seeds: int, output: Path) -> list[str]:
        """Of `attacks`."""
        forget, retain = (self.radius if on else "0" for on in SIDES.get(self.side, (0, 0)))
        where = ["--questions", "40"]
        if data is not None:
            where = ["--data", str(data), "--split", self.split, *SHARED]
        return [
            *("--methods", "dual_adamw+alm" if self.side == "none" else "saul"),
            *("--lr", RATE, "--batch-size", "8", *TARGET, *CONTROLLER, *where),
            *FEWER.get(self.split, ("--epochs", "10")),
            *("--set", f"rho_forget={forget}", "--set", f"rho_retain={retain}"),
            *("--seeds", str(seeds), "--output", str(output / self.folder)),
        ]


def runs(split: str) -> list[Run]:
    """The run without SAM first, then every radius on every side."""
    return [Run(split, "none", "0"), *(Run(split, s, r) for s in SIDES for r in RADII)]


def main(argv: Sequence[str] | None = None) -> int:
    """Do the runs that are left, record them, and write the tables."""
    parser = script_parser("operating_point.radii", __doc__)
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="TOFU's files; default: the embedded world")
    add("--split", default="forget01", metavar="NAME", help="of TOFU")
    add("--seeds", type=int, default=3, metavar="K", help="fresh seeds")
    add("--output", type=Path, default=Path("results/radii"), metavar="DIR")
    add("--page", action="store_true", help="run nothing")
    given = parser.parse_args(argv)
    split = WORLD if given.data is None else given.split
    for one in () if given.page else runs(split):
        attacks.main(one.arguments(given.data, given.seeds, given.output))
        record(given.output / one.folder, KEPT / one.folder)
    for place in (WORLD, "forget01", "forget05", "forget10"):
        if lines := list(table(KEPT, place)):
            write_text(KEPT / f"{place}-sam.md", page(place, lines))
    return 0


def table(folder: Path, split: str) -> Iterator[list[str]]:
    """Yield what is left without SAM, then the difference that SAM makes, radius by radius."""
    first, *others = runs(split)
    without = numbers(folder, first)
    if not without:
        return
    means = (f"{sum(row[name] for row in without) / len(without):.2f}" for name in SHOWN)
    yield ["none", "", *means]
    for one in others:
        pair = Pair(without, numbers(folder, one))
        if pair.given:
            yield [one.side, one.radius, *(interval(pair.gain(name)) for name in SHOWN)]


def numbers(folder: Path, one: Run) -> list[Row]:
    """A row per seed with the number of every column."""
    rows = read_lines(folder / one.folder / "results.jsonl")
    unlearned = [row for row in rows if row["method"] not in ("original", "retrained")]
    found: list[Row] = []
    for row in unlearned:
        of = {name: reduce(getitem, path, row["attacks"]) for name, path in COLUMNS.items()}
        lost = of["no attack"] - of["relearn forget"]
        found.append({"seed": row["seed"], **of, RELEARNT: lost})
    return found


def page(split: str, lines: list[list[str]]) -> str:
    """Write the table with what its columns are."""
    text = included(markdown(("SAM on", "ρ", *SHOWN), lines))
    return (
        f"# SAM, {split}\n\nWritten by `python -m benchmarks.studies.operating_point.radii`. Loss "
        "of the forget answers in nats per token after each attack (higher: less comes back), and "
        "the share of retain answers said word for word; last, how far relearning takes the loss "
        "down. The first row is Dual AdamW + ALM; the others are the difference to it, paired by "
        "seed, with its 95 % interval.\n\n"
        f"{text}\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
