"""The preset for a small model, chosen on the embedded world by a rule that was fixed before.

    python -m benchmarks.studies.operating_point.preset            the runs that are left, the page
    python -m benchmarks.studies.operating_point.preset --page     only the page

On seeds that no table reports:

1. *Rate and steps.* The control, the retain side alone, runs at every rate with half, once and
   twice the paper's steps. The steps stay the paper's; the rate is the largest one at which the
   control loses at most 0.01 of model utility with all three.
2. *Target and forget rate.* At that rate Dual AdamW + ALM and SAUL run with every target that a
   person can state, through a gate and with an aimed step, the forget side at a third of the
   retain side's rate, at that rate and at three times as much.
3. *Gone* means, with both methods and on every seed: at most 2.5 % of the answers word for word, no
   more of the words than `plan.LEVELS` has, and a membership AUC at most 0.15 above that of the
   model that never saw the answers.
4. Of the settings with which they are gone, the one with the best mean utility is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean

from benchmarks import tofu
from benchmarks.engine.matching import SEARCH_SEED
from benchmarks.engine.options import script_parser
from benchmarks.methods import CONTROL
from benchmarks.report.control import ALLOWED
from benchmarks.report.results import Row, read_lines
from benchmarks.report.tables import markdown
from benchmarks.studies.evidence.__main__ import record
from benchmarks.studies.operating_point.__main__ import KEPT
from benchmarks.studies.operating_point.plan import LEVELS, RATES, WORLD
from benchmarks.studies.operating_point.report import FORGOTTEN, UTILITY, control, held, mean, of
from torch_alm.unlearning.files import write_text

SEEDS = 3
EPOCHS = ("5", "10", "20")
"""Half, once and twice the paper's steps."""

METHODS = ("dual_adamw+alm", "saul")
TARGETS = {
    "token_certificate": ("0.5", ()),
    "certificate": ("0.95", ()),
    "level_share": ("0.95", ("level=never_seen",)),
}
WAYS = {
    "gate": ("--mu", "0.1", "--scale", "gradient", "--set", "release=0.5"),
    "aimed": ("--mu", "auto", "--scale", "step", "--set", "release=0"),
}
FORGET_RATES = (1 / 3, 1.0, 3.0)
"""Relative to the retain side's."""

EXACT, AUC, MOST_EXACT, MORE_AUC = "forget_exact_match", "membership_auc", 0.025, 0.15


@dataclass(frozen=True)
class Candidate:
    """A target, how its multiplier acts, and the rate of the forget side.

    Attributes:
        target: Of `TARGETS`.
        way: Of `WAYS`.
        rate: Of the retain side.
        relative: The forget side's rate, in units of the retain side's.
    """

    target: str
    way: str
    rate: str
    relative: float

    @property
    def folder(self) -> str:
        """Of its runs."""
        return f"preset-{self.target}-{self.way}-{self.relative:.2g}"

    def arguments(self) -> list[str]:
        """Of `tofu.py`, with every number of the preset: another one changes nothing here."""
        alpha, sets = TARGETS[self.target]
        forget = f"{self.relative * float(self.rate):.4g}"
        named = [word for one in (f"measure={self.target}", *sets) for word in ("--set", one)]
        return [
            *("--methods", ",".join(METHODS), "--no-control"),
            *("--lr", self.rate, "--forget-lr", forget, "--epochs", "10", "--batch-size", "8"),
            *("--alpha", alpha, "--multiplier", "0", "--rho", "1e-2", *WAYS[self.way], *named),
        ]


def main(argv: Sequence[str] | None = None) -> int:
    """Do the runs that are left, record them, and write the page."""
    parser = script_parser("operating_point.preset", __doc__)
    parser.add_argument("--output", type=Path, default=Path("results/preset"), metavar="DIR")
    parser.add_argument("--page", action="store_true", help="run nothing")
    given = parser.parse_args(argv)
    if not given.page:
        for rate, epochs in product(RATES, EPOCHS):
            words = ["--methods", CONTROL, "--lr", rate, "--epochs", epochs]
            run(given.output, control_folder(rate, epochs), words)
        for candidate in candidates(chosen_rate(KEPT)):
            run(given.output, candidate.folder, candidate.arguments())
    write_text(KEPT / "preset.md", page(KEPT))
    return 0


def run(output: Path, name: str, words: list[str]) -> None:
    """Run `tofu.py` on the embedded world, on the seeds of searches, and record its numbers."""
    seeds = ["--seed", str(SEARCH_SEED), "--seeds", str(SEEDS)]
    tofu.main([*words, "--questions", "40", *seeds, "--output", str(output / name)])
    record(output / name, KEPT / name)


def control_folder(rate: str, epochs: str) -> str:
    """Name the folder of the retain side alone."""
    return f"preset-control-{rate}-{epochs}"


def candidates(rate: str) -> Iterator[Candidate]:
    """Every setting that is tried at a rate."""
    for target, way, relative in product(TARGETS, WAYS, FORGET_RATES):
        yield Candidate(target, way, rate, relative)


def controls(folder: Path, rate: str) -> list[tuple[float | None, float | None]]:
    """Utility of the retain side alone, and of the original model, for each number of steps."""
    return [control(folder / control_folder(rate, epochs)) for epochs in EPOCHS]


def chosen_rate(folder: Path) -> str:
    """The largest rate whose control holds with every number of steps.

    Raises:
        ValueError: None holds.
    """
    for rate in reversed(RATES):
        found = controls(folder, rate)
        if all(a is not None and b is not None and b - a <= ALLOWED for a, b in found):
            return rate
    raise ValueError(f"at none of the rates {', '.join(RATES)} does the control hold")


def is_gone(rows: Sequence[Row], never_saw: Row) -> bool:
    """Tell whether the answers are gone on every seed of both methods."""
    limits: Mapping[str, float] = {
        EXACT: MOST_EXACT,
        FORGOTTEN: float(LEVELS[WORLD]),
        AUC: never_saw[AUC] + MORE_AUC,
    }
    return all(row[key] <= most for row in rows for key, most in limits.items())


def page(folder: Path) -> str:
    """Write the controls, the settings tried, and what the rule takes."""
    rate = chosen_rate(folder)
    lines, utilities = [], {}
    for one in candidates(rate):
        rows = read_lines(folder / one.folder / "results.jsonl")
        tried = of(rows, *METHODS)
        if not tried:
            continue
        gone = is_gone(tried, of(rows, "retrained")[0])
        if gone:
            utilities[one] = fmean(row[UTILITY] for row in tried)
        per_method = [f"{mean(of(tried, m), UTILITY):.3f}" for m in METHODS]
        worst = [f"{max(row[key] for row in tried):.2f}" for key in (EXACT, FORGOTTEN, AUC)]
        name = (one.target, one.way, f"{one.relative:.2g}")
        lines.append([*name, *per_method, *worst, "yes" if gone else "no"])
    kept = [[at, *(held(*found) for found in controls(folder, at))] for at in RATES]
    best = max(utilities, key=lambda one: utilities[one], default=None)
    taken = "None." if best is None else f"{best.target}, {best.way}, {best.relative:.2g}."
    headers = (
        *("target", "way", "forget rate", "MU: Dual AdamW + ALM", "SAUL"),
        *("exact, worst", "ROUGE-L, worst", "AUC, worst", "gone"),
    )
    return (
        "# The preset\n\nWritten by `python -m benchmarks.studies.operating_point.preset`; its "
        "first lines have the rule.\n\nModel utility of the retain side alone (in brackets where "
        f"it loses more than {ALLOWED}):\n\n"
        f"{markdown(('rate', *(f'{e} epochs' for e in EPOCHS)), kept)}\n\n"
        f"At {rate}, over {SEEDS} seeds:\n\n{markdown(headers, lines)}\n\nChosen: {taken}\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
