"""Everything the report and the matched comparison have to know about a benchmark's numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.report.results import Row
from benchmarks.report.tables import Column

CONTROLLER = {
    "open": "share of the steps with the gate open",
    "λ": "multiplier after the last step",
    "s": "seconds of training",
}
"""The columns that every benchmark has."""


class Axis(NamedTuple):
    """A number on an axis of a figure."""

    key: str
    label: str


def unchanged(row: Row) -> Row:
    """A row of results as it is."""
    return row


@dataclass(frozen=True)
class Layout:
    """The names of a benchmark's numbers.

    Attributes:
        numbers: Columns of the terminal's table: everything measured.
        paper: Columns of the paper's table.
        tradeoff: What is left of the forget set, against utility.
        utility: The one number that says what a model is still worth: a matched comparison
            maximises it, and the figure of several splits shows it.
        levels: What `--match` may hold fixed, and whether forgetting raises it.
        quick_eval: What a quick evaluation says about utility; their harmonic mean counts.
        reproduced: What a quick evaluation says about the forget set, larger where more is left;
            None if it says nothing.
        bounded: Those of the levels that are never below `reproduced`.
        limit: Larger than the retrained model's, this number marks a method that has not unlearned;
            None if nothing does.
        caption: Of the tables; `{over}` and `{how}` are filled in.
        columns: What those of `numbers` are, by their heading, where that does not say it.
        examples: Subsets of which example answers are shown.
        examples_note: What the marks of the example answers mean; `{right}`, `{wrong}`, `{seed}`.
        judged: The paper's columns once a judge has spoken, if it speaks on this benchmark.
        judged_tradeoff: The axes then.
        panels: Titles of the figure of steps, in place of those of cross-entropies.
        derive: Adds numbers that follow from others to a row.
    """

    numbers: tuple[Column, ...]
    paper: tuple[Column, ...]
    tradeoff: tuple[Axis, Axis]
    utility: Axis
    levels: Mapping[str, bool]
    quick_eval: tuple[str, ...]
    caption: str
    columns: Mapping[str, str] = field(default_factory=dict)
    reproduced: str | None = None
    bounded: frozenset[str] = frozenset()
    limit: str | None = None
    examples: tuple[str, ...] = ("forget", "retain")
    examples_note: str = "{right}: every word of the truth, in order. {wrong}: not so. Seed {seed}."
    judged: tuple[Column, ...] | None = None
    judged_tradeoff: tuple[Axis, Axis] | None = None
    panels: Mapping[str, str] = field(default_factory=dict)
    derive: Callable[[Row], Row] = field(default=unchanged)
