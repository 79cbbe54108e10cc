"""The runs behind `results/README.md`, and the page from their lines.

    python -m benchmarks.studies.evidence --data DIR   every run; goes on where it stopped
    python -m benchmarks.studies.evidence --data DIR --only forget01-matched
    python -m benchmarks.studies.evidence --list       the commands, one per table
    python -m benchmarks.studies.evidence --page       only tables and figures

DIR has TOFU's JSON-lines files. What the models said stays in the output folder; numbers, settings
and the controller's steps are recorded beside the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import copyfile
from typing import Any

from benchmarks import tofu
from benchmarks.engine.options import script_parser
from benchmarks.report.results import RECORDED, ResultsFolder, write_json, write_lines
from benchmarks.studies import attacks
from benchmarks.studies.evidence import page
from benchmarks.studies.evidence.plan import PLAN

KEPT = RECORDED / "tofu"
NUMBERS = ("results.jsonl", "trials.jsonl", "tables.tex", "attacks.md")
PATHS = ("data", "base", "replay", "prose")
"""Settings that say where something lay; the record keeps the last name."""
SCRIPTS = {"tofu": tofu.main, "attacks": attacks.main}


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is left, record it, and write the page; 0 when every script finished."""
    parser = script_parser("evidence", __doc__)
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="folder of TOFU's JSON-lines files")
    add("--output", type=Path, default=Path("results/evidence"), metavar="DIR", help="runs go here")
    add("--only", nargs="+", metavar="NAME", help="these tables alone")
    add("--list", action="store_true", help="print the command of each table")
    add("--page", action="store_true", help="run nothing")
    add("--record", action="store_true", help="run nothing, but take in what the output holds")
    given = parser.parse_args(argv)
    names = [stage.name for stage in PLAN]
    if unknown := set(given.only or ()) - set(names):
        parser.error(f"--only {', '.join(sorted(unknown))}: did you mean {', '.join(names)}?")
    stages = [stage for stage in PLAN if given.only is None or stage.name in given.only]
    if given.list:
        print("\n".join(f"{stage.name}: {stage.command()}" for stage in stages))
        return 0
    if given.data is None and not (given.page or given.record):
        parser.error("--data is missing. Did you mean the folder of TOFU's files, or --page?")
    for stage in stages:
        if given.data is not None:
            SCRIPTS[stage.script](stage.arguments(given.data, given.output))
        if not given.page:
            record(given.output / stage.name, KEPT / stage.name)
    page.write(KEPT)
    return 0


def record(source: Path, target: Path) -> None:
    """Keep the numbers of a table: nothing of the texts, nor of where they lay."""
    if not (source / "results.jsonl").exists():
        return
    target.mkdir(parents=True, exist_ok=True)
    for name in NUMBERS:
        if (source / name).exists():
            copyfile(source / name, target / name)
    settings = json.loads((source / "settings.json").read_text())
    names = {key: Path(settings[key]).name for key in PATHS if settings.get(key)}
    write_json(target / "settings.json", {**settings, **names})
    write_lines(target / "control.jsonl", controlled(ResultsFolder(source)))


def controlled(folder: ResultsFolder) -> Iterator[dict[str, Any]]:
    """Of each run with a controller: lambda, lambda+ and the violation, step by step."""
    for row in folder.rows():
        steps = [s for s in folder.trace(row["method"], row["seed"]) if "lambda" in s]
        if steps:
            series = {key: [_short(s.get(key)) for s in steps] for key in ("lambda", "weight")}
            violation = [_short(s.get("violation")) for s in steps]
            yield {"method": row["method"], "seed": row["seed"], **series, "violation": violation}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


if __name__ == "__main__":
    raise SystemExit(main())
