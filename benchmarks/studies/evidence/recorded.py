"""The records of the stages: results, the controller's steps, and the choices of a search."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.report.results import Row, read_lines


@dataclass(frozen=True)
class Recorded:
    """The records of every stage.

    Attributes:
        lines: The results of each, by name.
        steps: What its controllers did, step by step.
        matched: What a search chose, by method.
    """

    lines: dict[str, list[Row]]
    steps: dict[str, list[Row]]
    matched: dict[str, dict[str, str]] = field(default_factory=dict)

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
        {name: _matched(folder / name / "settings.json") for name in names},
    )


def _matched(settings: Path) -> dict[str, str]:
    return json.loads(settings.read_text()).get("matched", {}) if settings.exists() else {}
