"""Tables, figures and example answers of finished runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.report import control, figures
from benchmarks.report.examples import RIGHT, WRONG, examples
from benchmarks.report.latex import latex_table
from benchmarks.report.layout import Layout
from benchmarks.report.results import ResultsFolder, Row, read_lines
from benchmarks.report.tables import (
    REFERENCE_LABELS,
    Column,
    lines,
    markdown_table,
    name_of,
    shown,
    text_table,
    without_deviations,
)
from torch_alm.unlearning.files import write_text


def publish(folders: Sequence[Path], layout: Layout) -> None:
    """Print the table of each folder; write its tables, figures and examples.

    Args:
        folders: Results, all of one benchmark; the first also gets the figure of utility per split.
        layout: The names of its numbers.
    """
    splits: dict[str, list[Row]] = {}
    for path in folders:
        folder = ResultsFolder(path)
        settings = json.loads(folder.settings.read_text())
        rows = [layout.derive(row) for row in with_judgements(folder)]
        splits[str(settings["split"])] = rows
        write_text(path / "report.md", markdown(folder, rows, settings, layout))
        write_text(path / "tables.tex", latex(rows, layout))
        draw(folder, rows, layout)
        numbers = shown(layout.numbers, rows)
        print(f"\n{text_table(without_deviations(lines(rows, numbers)), numbers)}")
        print(f"\n{control.note(rows, layout.utility)}")
        print(f"\n{path}: results.jsonl, report.md (with deviations), tables.tex, figures.")
    figures.utility_per_split(splits, folders[0] / "utility.png", y=layout.utility)


def with_judgements(folder: ResultsFolder) -> list[Row]:
    """The rows of results, each with what the judge said about its run."""
    found = {(row["method"], row["seed"]): row for row in read_lines(folder.judged)}
    return [row | found.get((row["method"], row["seed"]), {}) for row in folder.rows()]


def paper_columns(rows: Sequence[Row], layout: Layout) -> tuple[Column, ...]:
    """The paper's columns: a judge's where one has spoken, else what is measured without."""
    if layout.judged is None or not is_judged(rows):
        return shown(layout.paper, rows)
    return shown(layout.judged, rows)


def is_judged(rows: Sequence[Row]) -> bool:
    """Tell whether a judge has spoken about every run."""
    return bool(rows) and all(row.get("judge_hm") is not None for row in rows)


def not_unlearned(rows: Sequence[Row], layout: Layout) -> set[str]:
    """Methods that say more of the forget set than the retrained model: the paper's red values."""
    if layout.limit is None:
        return set()
    column = (Column(layout.limit, "", ""),)
    levels = {line.method: line.cells[0].mean for line in lines(rows, column)}
    limit = levels.get("retrained")
    if limit is None:
        return set()
    more = {m for m, v in levels.items() if v is not None and v > limit}
    return more - REFERENCE_LABELS.keys()


def markdown(folder: ResultsFolder, rows: Sequence[Row], settings: Row, layout: Layout) -> str:
    """Everything of a folder to read on: tables, notes on the settings, example answers."""
    columns, numbers = paper_columns(rows, layout), shown(layout.numbers, rows)
    red = not_unlearned(rows, layout)
    first = first_seeds(rows)
    note = layout.examples_note.format(right=RIGHT, wrong=WRONG, seed=min(first.values()))
    answers = {method: folder.answers_of(method, seed) for method, seed in first.items()}
    parts = [
        "# Results",
        caption(rows, layout, "struck out"),
        markdown_table(lines(rows, columns), columns, red),
        control.note(rows, layout.utility),
        "## All numbers",
        markdown_table(lines(rows, numbers), numbers, red),
        meanings(numbers, layout.columns),
        remarks("Notes on the settings", settings.get("notes", {})),
        remarks("How settings were found", settings.get("matched", {})),
        "## Example answers",
        note,
        *(examples(answers, subset) for subset in layout.examples),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def first_seeds(rows: Sequence[Row]) -> dict[str, int]:
    """The first seed of each method, in the order of the tables."""
    seeds = {row["method"]: row["seed"] for row in reversed(rows)}
    return {line.method: seeds[line.method] for line in lines(rows, ())}


def meanings(columns: Sequence[Column], known: Mapping[str, str]) -> str:
    """List what the columns of a table are, those that need words."""
    found = {column.header: known.get(column.header) for column in columns}
    return "\n".join(f"- {header}: {text}." for header, text in found.items() if text)


def remarks(title: str, by_method: dict[str, str]) -> str:
    """A section with a line per method, or nothing."""
    found = [f"- {name_of(method)}: {text.rstrip('.')}." for method, text in by_method.items()]
    return "\n\n".join([f"## {title}", "\n".join(found)]) if found else ""


def latex(rows: Sequence[Row], layout: Layout) -> str:
    """The table in the paper's layout, and the one with every number."""
    red = not_unlearned(rows, layout)
    return "\n\n".join(
        latex_table(lines(rows, columns), columns, caption(rows, layout, "red"), red) + "\n"
        for columns in (paper_columns(rows, layout), shown(layout.numbers, rows))
    )


def caption(rows: Sequence[Row], layout: Layout, how: str) -> str:
    """Say what the tables show, and how methods that have not unlearned are marked."""
    seeds = {row["seed"] for row in rows if row["method"] not in REFERENCE_LABELS}
    over = f", mean and standard deviation over {len(seeds)} seeds" if len(seeds) > 1 else ""
    return layout.caption.format(over=over, how=how)


def draw(folder: ResultsFolder, rows: Sequence[Row], layout: Layout) -> None:
    traces = {method: folder.trace(method, seed) for method, seed in first_seeds(rows).items()}
    seen = {method: trace for method, trace in traces.items() if trace}
    figures.training(seen, folder.path / "training.png", layout.panels)
    judged = layout.judged_tradeoff if is_judged(rows) else None
    x, y = judged or layout.tradeoff
    figures.tradeoff(rows, folder.path / "tradeoff.png", x=x, y=y)
