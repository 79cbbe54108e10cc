"""Tables of results, as frames of pandas and as Markdown."""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from benchmarks import methods
from benchmarks.report.results import Row

REFERENCES = {
    "original": "Original model",
    "retrained": "Retrained model",
    methods.CONTROL: methods.label(methods.CONTROL),
}
"""The lines that methods are compared with: two models, and the control."""


class Column(NamedTuple):
    """A number of the results, and its format in a table."""

    key: str
    heading: str
    digits: int = 2


CONTROLLER = (
    Column("gate_open", "pushed"),
    Column("lambda", "λ at the end", 3),
    Column("seconds", "seconds", 1),
)
"""The last columns of every benchmark."""


def name_of(method: str) -> str:
    """Return the name of a method or reference model in tables."""
    return REFERENCES.get(method) or methods.label(method)


def sort_methods(rows: Sequence[Row]) -> list[str]:
    """Return the methods of some rows, in the order of the tables."""
    present = {row["method"] for row in rows}
    return [key for key in (*REFERENCES, *methods.names("any")) if key in present]


def table(rows: Sequence[Row], columns: Sequence[Column]) -> pd.DataFrame:
    """Return a line per method: mean and standard deviation over its seeds as text.

    A column without numbers is left out; a number missing for one seed of a method is missing.
    """
    frame = pd.DataFrame(rows)
    shown = [c for c in columns if c.key in frame and frame[c.key].notna().any()]
    keys = [column.key for column in shown]
    numbers = frame[keys].apply(pd.to_numeric).groupby(frame["method"])
    mean = numbers.agg(lambda values: values.mean(skipna=False)).reindex(sort_methods(rows))
    deviation = numbers.agg("std").reindex(mean.index)
    cells = {
        column.heading: [
            cell(*pair, column.digits)
            for pair in zip(mean[column.key], deviation[column.key], strict=True)
        ]
        for column in shown
    }
    return pd.DataFrame(cells, index=pd.Index(map(name_of, mean.index), name="Method"))


def cell(mean: float, deviation: float, digits: int) -> str:
    """Format `0.57`, or `0.57 ± 0.01` over several seeds; a dash if the number is missing."""
    if pd.isna(mean):
        return "–"
    return f"{mean:.{digits}f}" + ("" if pd.isna(deviation) else f" ± {deviation:.{digits}f}")


def markdown(frame: pd.DataFrame) -> str:
    """Return a frame of text as a Markdown table, with numbers to the right."""
    right = ["left", *["right"] * frame.shape[1]]
    return frame.to_markdown(disable_numparse=True, colalign=right)
