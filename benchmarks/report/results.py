"""The folder a run writes to: what is finished, under which settings, and how each step went.

A finished run is one whole line of `results.jsonl`, appended in one write and synced. A kill can
therefore cut the last line and nothing else; a cut line is dropped when the folder is next opened,
and its run is repeated.
"""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch_alm.language import read_records
from torch_alm.unlearning.files import finite, write_text

Row = dict[str, Any]

RECORDED = Path(__file__).parents[1] / "results"
"""The results kept in the repository."""


def parsed(parser: ArgumentParser, arguments: Sequence[str] | None) -> Namespace:
    """Parse a study's arguments; its toy sizes (`--quick`) never replace the results kept here."""
    add = parser.add_argument
    add("--output", type=Path, metavar="DIR", help="default: where the recorded results are")
    options = parser.parse_args(arguments)
    options.output = options.output or (Path("results") if options.quick else RECORDED)
    return options


class ResultsFolder:
    """`results.jsonl`, `settings.json` and `traces/` under one path.

    Args:
        path: The folder; made if it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results = path / "results.jsonl"
        self.settings = path / "settings.json"
        self.traces = path / "traces"
        self.answers = path / "answers"
        self.trials = path / "trials.jsonl"
        self.judged = path / "judged.jsonl"

    def claim(self, settings: Mapping[str, Any], *, overwrite: bool = False) -> None:
        """Take the folder for runs under `settings`, or continue what was begun there.

        Raises:
            ValueError: The folder holds results of other settings, or results without any.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if overwrite:
            runs = (run for at in (self.traces, self.answers) for run in at.glob("*-seed*.jsonl"))
            for file in (self.results, self.settings, self.trials, *runs):
                file.unlink(missing_ok=True)
        else:
            self._check_own()
        drop_cut_line(self.results)
        drop_cut_line(self.trials)
        earlier = self._earlier_settings()
        differences = list(_differences(earlier, settings))
        if differences:
            raise ValueError(
                f"{self.path} holds results of other settings: {_listed(differences)}. "
                "Mixing them would make one table of two experiments. "
                "Did you mean another --output, or --overwrite to start again?"
            )
        methods = {**earlier.get("methods", {}), **settings.get("methods", {})}
        write_json(self.settings, {**earlier, **settings, "methods": methods})

    def remember(self, more: Mapping[str, Mapping[str, Any]]) -> None:
        """Add to `settings.json` what was found out, beside what was found of other methods."""
        known = json.loads(self.settings.read_text())
        found = {key: {**known.get(key, {}), **value} for key, value in more.items()}
        write_json(self.settings, {**known, **found})

    def rows(self) -> list[Row]:
        """The finished runs, oldest first."""
        return read_lines(self.results)

    def finished(self) -> set[tuple[str, int]]:
        """(method, seed) of every finished run."""
        return {(row["method"], row["seed"]) for row in self.rows()}

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one finished run as one whole line, on disk when this returns."""
        append_line(self.results, row)

    def write_trace(self, method: str, seed: int, steps: Iterable[Mapping[str, Any]]) -> None:
        """Write what happened in each step of a run, one line per step."""
        write_lines(self.traces / f"{method}-seed{seed}.jsonl", steps)

    def write_answers(self, method: str, seed: int, answers: Iterable[Mapping[str, Any]]) -> None:
        """Write what the unlearned model answers, one line per question."""
        write_lines(self.answers / f"{method}-seed{seed}.jsonl", answers)

    def trace(self, method: str, seed: int) -> list[Row]:
        """The steps of a run; empty where there were none (the original model)."""
        return read_lines(self.traces / f"{method}-seed{seed}.jsonl")

    def answers_of(self, method: str, seed: int) -> list[Row]:
        """The answers of a run, one per question."""
        return read_lines(self.answers / f"{method}-seed{seed}.jsonl")

    def _check_own(self) -> None:
        """Refuse a folder with such files that no run has written, before any of them changes."""
        if is_of_a_run(self.settings):
            return
        reports = (self.path / name for name in ("report.md", "tables.tex"))
        found = [p for p in (self.settings, self.results, self.trials, *reports) if p.exists()]
        if found:
            raise ValueError(
                f"{self.path} has a {found[0].name} but no settings.json of a run, so nobody can "
                "tell what it was made with, and it would be lost. Did you mean another --output?"
            )

    def _earlier_settings(self) -> Row:
        """Read what earlier results were made with; nothing binds a folder without any."""
        if not self.rows() and not read_lines(self.trials):
            return {}
        return json.loads(self.settings.read_text())


def is_of_a_run(settings: Path) -> bool:
    """Tell whether a `settings.json` is there, and is that of a run."""
    try:
        found = json.loads(settings.read_text())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "methods" in found


def read_lines(path: Path) -> list[Row]:
    """The rows of a JSON-lines file; none where there is no file.

    Raises:
        ValueError: A line that is not JSON, named by file and number.
    """
    return [record.fields for record in read_records(path)] if path.exists() else []


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Append one whole line, on disk when this returns."""
    with path.open("ab", buffering=0) as file:
        file.write((_line(row) + "\n").encode())
        os.fsync(file.fileno())


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSON-lines file whole, or leave the old one as it was."""
    write_text(path, "".join(_line(row) + "\n" for row in rows))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole, or leave the old one as it was."""
    write_text(path, json.dumps(finite(content), indent=2, sort_keys=True) + "\n")


def read_record(folder: Path, name: str) -> dict[str, Any]:
    """The numbers of a study, empty where there are none yet."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write_record(
    folder: Path, name: str, content: Mapping[str, Any], page: Callable[[Any], str]
) -> None:
    """Write the numbers of a study as `NAME.json`, and `NAME.md`, which is made from them."""
    write_json(folder / f"{name}.json", content)
    write_text(folder / f"{name}.md", page(content))


def drop_cut_line(path: Path) -> None:
    """Remove a last line without its end: the mark of a run that was killed while writing."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        os.truncate(path, len(whole))


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(finite(row), ensure_ascii=False, allow_nan=False)


def _differences(earlier: Mapping[str, Any], now: Mapping[str, Any], at: str = "") -> Iterable[str]:
    """List what both say and say differently; what only one names is no difference.

    Methods and versions may be added; a hyperparameter may not change.
    """
    for key in [key for key in now if key in earlier and key != "versions"]:
        old, new = earlier[key], now[key]
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{at}{key}.")
        elif finite(old) != finite(new):
            yield f"{at}{key} was {old!r} and is now {new!r}"


def _listed(differences: Sequence[str], most: int = 4) -> str:
    more = len(differences) - most
    return "; ".join(differences[:most]) + (f"; and {more} more" if more > 0 else "")
