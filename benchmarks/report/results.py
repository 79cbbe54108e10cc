"""The folder a run writes to: what is finished, under which settings, and how each step went.

A finished run is one whole line of `results.jsonl`, appended in one write and synced. A kill can
therefore cut the last line and nothing else; a cut line is dropped when the folder is next opened,
and its run is repeated.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch_alm.language import read_records

Row = dict[str, Any]
PARTS = ("traces", "answers")
"""The files of each run, one per method and seed: its steps, and the model's answers."""


class ResultsFolder:
    """`results.jsonl`, `settings.json`, and a folder of each of `PARTS` under one path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results = path / "results.jsonl"
        self.settings = path / "settings.json"

    def claim(self, settings: Mapping[str, Any], *, overwrite: bool = False) -> None:
        """Take the folder for runs under `settings`, or continue what was begun there.

        Raises:
            ValueError: The folder holds results of other settings, or results without any.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        earlier = self._earlier()
        if overwrite:
            runs = (run for part in PARTS for run in (self.path / part).glob("*-seed*.jsonl"))
            for file in (self.results, self.settings, *runs):
                file.unlink(missing_ok=True)
            earlier = {}
        drop_cut_line(self.results)
        differences = list(_differences(earlier, settings))
        if differences:
            raise ValueError(
                f"{self.path} holds results of other settings: {'; '.join(differences[:4])}. "
                "Mixing them would make one table of two experiments. "
                "Did you mean another --output, or --overwrite to start again?"
            )
        methods = {**earlier.get("methods", {}), **settings["methods"]}
        write_json(self.settings, {**earlier, **settings, "methods": methods})

    def _earlier(self) -> Row:
        """Read what earlier results were made with; nothing binds a folder without any."""
        files = (self.settings, self.results, self.path / "report.md")
        found = [file.name for file in files if file.exists()]
        known = self.read_settings() if self.settings.exists() else {}
        if found and not (isinstance(known, dict) and "methods" in known):
            raise ValueError(
                f"{self.path} has a {found[0]} but no settings.json of a run, so nobody can tell "
                "what it was made with, and it would be lost. Did you mean another --output?"
            )
        return known if self.results.exists() else {}

    def read_settings(self) -> Row:
        """The settings of the runs."""
        return json.loads(self.settings.read_text())

    def rows(self) -> list[Row]:
        """The finished runs, oldest first."""
        return read_lines(self.results)

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one finished run as one whole line, on disk when this returns."""
        append_line(self.results, row)

    def write(self, part: str, method: str, seed: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write a part of a run: one line per step, or per question."""
        write_lines(self.path / part / f"{method}-seed{seed}.jsonl", rows)

    def read(self, part: str, method: str, seed: int) -> list[Row]:
        """A part of a run; empty where there is none (the original model takes no steps)."""
        return read_lines(self.path / part / f"{method}-seed{seed}.jsonl")


def read_lines(path: Path) -> list[Row]:
    """The rows of a JSON-lines file; none where there is no file.

    Raises:
        ValueError: A line that is not JSON, named by file and number.
    """
    return [record.fields for record in read_records(path)] if path.exists() else []


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Append one whole line, on disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        file.write((_line(row) + "\n").encode())
        os.fsync(file.fileno())


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSON-lines file whole, or leave the old one as it was."""
    write_text(path, "".join(_line(row) + "\n" for row in rows))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole, or leave the old one as it was."""
    write_text(path, json.dumps(finite(content), indent=2, sort_keys=True) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file under another name, then take the name; the old one stays if that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.partial")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def finite(value: Any) -> Any:
    """The value with None for each number that is not finite, which JSON has no word for."""
    if isinstance(value, Mapping):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def drop_cut_line(path: Path) -> None:
    """Remove a last line without its end: the mark of a run that was killed while writing."""
    if path.exists():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(finite(row), ensure_ascii=False, allow_nan=False)


def _differences(earlier: Mapping[str, Any], now: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """List what both say and say differently; what only one names is no difference.

    Methods may be added; a hyperparameter may not change.
    """
    for key in [key for key in now if key in earlier and key not in ("torch", "notes")]:
        old, new = earlier[key], now[key]
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{at}{key}.")
        elif finite(old) != finite(new):
            yield f"{at}{key} was {old!r} and is now {new!r}"
