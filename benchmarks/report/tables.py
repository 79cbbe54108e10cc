"""Tables: rows of results in, text for the terminal or Markdown out."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from benchmarks import methods
from benchmarks.report.results import Row

REFERENCE_LABELS = {
    "original": "Original model",
    "retrained": "Retrained model",
    methods.CONTROL: methods.label(methods.CONTROL),
}
"""The lines that methods are compared with: two models, and the control."""
MISSING = "–"
AT_FLOOR = "≤"
FLOOR_ROUNDING = 1e-6


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: Name of the number in a row of results.
        group: Heading over neighbouring columns.
        header: Heading of the column.
        digits: Digits after the point.
        better: 1 where higher is better, -1 where lower is, 0 where neither is.
        percent: Whether a share is shown in percent.
        nearest: The value that the best ones are closest to, where neither higher nor lower is.
        optional: Whether a table leaves the column out when no run has the number.
        floor: Name of the smallest value that the number can have in a row; a value at it is shown
            as a bound.
    """

    key: str
    group: str
    header: str
    digits: int = 2
    better: int = 0
    percent: bool = False
    nearest: float | None = None
    optional: bool = False
    floor: str | None = None

    def is_at_floor(self, row: Row) -> bool:
        """Tell whether the number could not have come out smaller."""
        value, least = row.get(self.key), row.get(self.floor or "")
        return value is not None and least is not None and value <= least + FLOOR_ROUNDING

    @property
    def arrow(self) -> str:
        """The direction of the better values."""
        if self.nearest is not None:
            return f"→{self.nearest:g}"
        return {1: "↑", -1: "↓", 0: ""}[self.better]

    def merit(self, shown: float) -> float | None:
        """A number that is larger for better values; None where no value is better."""
        if self.nearest is not None:
            return -abs(shown - self.nearest)
        return self.better * shown if self.better else None


@dataclass(frozen=True)
class Cell:
    """Mean and standard deviation over seeds; None where a number is missing or needs two seeds.

    With a value at the smallest possible one among them, the mean is a bound.
    """

    mean: float | None
    deviation: float | None = None
    is_bound: bool = False

    def text(self, digits: int, sign: str = "") -> str:
        """`0.57`, or `0.57 ± 0.01` over several seeds; `≤-22.7` for a bound."""
        if self.mean is None:
            return MISSING
        text = f"{AT_FLOOR if self.is_bound else ''}{self.mean:{sign}.{digits}f}"
        return text if self.deviation is None else f"{text} ± {self.deviation:.{digits}f}"


@dataclass(frozen=True)
class Line:
    """A method's line of a table."""

    method: str
    cells: tuple[Cell, ...]

    @property
    def label(self) -> str:
        """The name of the method as the paper writes it."""
        return name_of(self.method)

    @property
    def is_reference(self) -> bool:
        """Tell whether this is a model no method has touched."""
        return self.method in REFERENCE_LABELS


def name_of(method: str) -> str:
    """A method or reference model as it is called in tables."""
    return REFERENCE_LABELS.get(method) or methods.label(method)


def shown(columns: Sequence[Column], rows: Sequence[Row]) -> tuple[Column, ...]:
    """The columns of a table: all but the optional ones that no run has a number for."""

    def has(column: Column) -> bool:
        return any(row.get(column.key) is not None for row in rows)

    kept = tuple(c for c in columns if not c.optional or has(c))
    return kept if len(kept) < len(columns) else tuple(columns)  # the very same where it is whole


def lines(rows: Sequence[Row], columns: Sequence[Column]) -> list[Line]:
    """One line per method, over its seeds, in the order of the registry."""
    present = {row["method"] for row in rows}
    order = [key for key in (*REFERENCE_LABELS, *methods.names("any")) if key in present]
    runs = {key: [row for row in rows if row["method"] == key] for key in order}
    return [Line(key, tuple(cell_of(found, c) for c in columns)) for key, found in runs.items()]


def cell_of(rows: Sequence[Row], column: Column) -> Cell:
    """The cell of a method's runs, which knows whether its mean is a bound."""
    found = cell([row.get(column.key) for row in rows], 100.0 if column.percent else 1.0)
    return replace(found, is_bound=any(map(column.is_at_floor, rows)))


def cell(values: Iterable[float | None], factor: float = 1.0) -> Cell:
    """Mean and sample standard deviation; a value that is missing for one seed is missing."""
    given = list(values)
    found = [factor * value for value in given if value is not None]
    if not found or len(found) < len(given):
        return Cell(None)
    return Cell(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None)


def without_deviations(table: Sequence[Line]) -> list[Line]:
    """The means alone, for a terminal, which is narrow."""
    return [
        Line(line.method, tuple(replace(c, deviation=None) for c in line.cells)) for line in table
    ]


def text_table(table: Sequence[Line], columns: Sequence[Column]) -> str:
    """Aligned columns for a terminal, with the groups over them."""
    body = [[line.label, *texts(line, columns)] for line in table]
    heads = ["", *(c.header + c.arrow for c in columns)]
    widths = [max(map(len, column)) for column in zip(heads, *body, strict=True)]
    groups = ["", *(c.group for c in columns)]
    shown = [g if i == 0 or g != groups[i - 1] else "" for i, g in enumerate(groups)]
    rule = "─" * (sum(widths) + 2 * (len(widths) - 1))
    aligned = [_aligned(row, widths) for row in [heads, *body]]
    return "\n".join([_overhanging(shown, widths), aligned[0], rule, *aligned[1:]])


def texts(line: Line, columns: Sequence[Column]) -> list[str]:
    """The numbers of a line as they are shown."""
    return [c.text(column.digits) for c, column in zip(line.cells, columns, strict=True)]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = row
    numbers = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
    return "  ".join([first.ljust(widths[0]), *numbers]).rstrip()


def _overhanging(groups: Sequence[str], widths: Sequence[int]) -> str:
    """Group names, each beginning over its first column and free to run on over the next."""
    text, position = "", 0
    for group, width in zip(groups, widths, strict=True):
        if group:
            text = text.ljust(position) + (" " if len(text) > position else "") + group
        position += width + 2
    return text.rstrip()


def markdown_table(
    table: Sequence[Line], columns: Sequence[Column], red: Collection[str] = ()
) -> str:
    """A Markdown table; best values bold, second best in italics, methods in `red` struck out."""
    heads = ["Method", *(f"{c.group}: {c.header} {c.arrow}".strip(": ") for c in columns)]
    marks = {0: "", 1: "**", 2: "*"}
    body = [
        [
            f"~~{line.label}~~" if line.method in red else line.label,
            *(f"{marks[r]}{t}{marks[r]}" for t, r in zip(shown, row, strict=True)),
        ]
        for line, row in zip(table, emphasis(table, columns, red), strict=True)
        for shown in [texts(line, columns)]
    ]
    return markdown(heads, body)


def markdown(head: Sequence[str], body: Iterable[Sequence[str]], others: str = "---:") -> str:
    """A Markdown table; the first column is words, the others numbers unless `others` is `---`."""
    rule = ["---", *[others] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *body])


def included(text: str, name: str = "table") -> str:
    """Text between the marks by which the documentation includes a part of a page."""
    return f"<!-- --8<-- [start:{name}] -->\n{text}\n<!-- --8<-- [end:{name}] -->"


def spread(values: Iterable[float | None], digits: int, sign: str = "") -> str:
    """Mean and standard deviation over seeds; a dash where one is missing."""
    return cell(values).text(digits, sign)


def statuses(rows: Sequence[Row]) -> str:
    """Count the last statuses of constraints, most often first."""
    words = [row["status"] for row in rows if row.get("status")]
    counts = sorted(((words.count(word), word) for word in set(words)), reverse=True)
    return ", ".join(f"{word} {count}" for count, word in counts) or MISSING


def emphasis(
    table: Sequence[Line], columns: Sequence[Column], red: Collection[str] = ()
) -> list[list[int]]:
    """1 for the best and 2 for the second best shown value of each column among methods, else 0.

    Reference models and methods in `red` take no part, nor do columns without a direction. Equal
    digits rank equally.
    """
    competing = [not line.is_reference and line.method not in red for line in table]
    ranks = [[0] * len(columns) for _ in table]
    for at, column in enumerate(columns):
        shown = {i: _ranked(line.cells[at], column) for i, line in enumerate(table)}
        values = {i: v for i, v in shown.items() if v is not None and competing[i]}
        best = sorted(set(values.values()), reverse=True)
        for i, value in values.items():
            ranks[i][at] = 1 + best.index(value) if best.index(value) < 2 else 0
    return ranks


def _ranked(c: Cell, column: Column) -> float | None:
    return None if c.mean is None else column.merit(round(c.mean, column.digits))
