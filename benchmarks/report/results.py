"""The folder of finished runs, with their settings and steps.

A finished run is one line of `results.jsonl`, appended in one write and synced. A kill can only
cut the last line; a cut line is dropped when the folder is next opened, and the run is repeated.
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
        """Claim the folder for runs under `settings`, or continue the runs in it.

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
        """Return the settings of earlier results, or nothing in a folder without any."""
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
        """Return the settings of the runs."""
        return json.loads(self.settings.read_text())

    def rows(self) -> list[Row]:
        """Return the finished runs, oldest first."""
        return read_lines(self.results)

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one finished run as a line; it is on disk when this returns."""
        append_line(self.results, row)

    def write(self, part: str, method: str, seed: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write a part of a run: one line per step, or per question."""
        write_lines(self.path / part / f"{method}-seed{seed}.jsonl", rows)

    def read(self, part: str, method: str, seed: int) -> list[Row]:
        """Read a part of a run; empty if there is none (the original model takes no steps)."""
        return read_lines(self.path / part / f"{method}-seed{seed}.jsonl")


def read_lines(path: Path) -> list[Row]:
    """Return the rows of a JSON-lines file, none if there is no file.

    Raises:
        ValueError: A line that is not JSON, named by file and number.
    """
    return [record.fields for record in read_records(path)] if path.exists() else []


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Append one line; it is on disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        file.write((_line(row) + "\n").encode())
        os.fsync(file.fileno())


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSON-lines file as `write_text` does."""
    write_text(path, "".join(_line(row) + "\n" for row in rows))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file as `write_text` does."""
    write_text(path, json.dumps(finite(content), indent=2, sort_keys=True) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file under another name, then rename it; the old one stays if that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.partial")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def finite(value: Any) -> Any:
    """Return the value with None for each number that is not finite, as JSON requires."""
    if isinstance(value, Mapping):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def drop_cut_line(path: Path) -> None:
    """Remove a last line without its end, left by a run that was killed while writing."""
    if path.exists():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(finite(row), ensure_ascii=False, allow_nan=False)


def _differences(earlier: Mapping[str, Any], now: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """Yield the settings that both have with different values.

    Methods may be added, but no hyperparameter may change.
    """
    for key in [key for key in now if key in earlier and key not in ("torch", "notes")]:
        old, new = earlier[key], now[key]
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{at}{key}.")
        elif finite(old) != finite(new):
            yield f"{at}{key} was {old!r} and is now {new!r}"
