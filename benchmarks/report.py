"""What becomes of finished runs: tables, figures and example answers.

    python benchmarks/report.py DIR [DIR ...]

makes them again from the folders' results, judged if a judge is named. With several folders, one
per split, the figure of utility per split shows them side by side.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks import figures, judging, layouts
from benchmarks.examples import RIGHT, WRONG, examples
from benchmarks.latex import latex_table
from benchmarks.layouts import Layout
from benchmarks.metrics.chat import Chat
from benchmarks.metrics.judge import judge
from benchmarks.results import ResultsFolder, Row, replace
from benchmarks.tables import (
    Column,
    lines,
    markdown_table,
    name_of,
    shown,
    text_table,
    without_deviations,
)


def publish(folders: Sequence[Path]) -> None:
    """Print the table of each folder; write its tables, figures and examples.

    Raises:
        ValueError: Folders of several benchmarks, whose numbers share no figure.
    """
    splits, layout = {}, shared_layout(folders)
    for path in folders:
        folder = ResultsFolder(path)
        settings = json.loads(folder.settings.read_text())
        rows = [layout.derive(row) for row in judging.with_judgements(folder)]
        splits[str(settings["split"])] = rows
        replace(path / "report.md", markdown(folder, rows, settings, layout))
        replace(path / "tables.tex", latex(rows, layout))
        draw(folder, rows, layout)
        numbers = shown(layout.numbers, rows)
        print(f"\n{text_table(without_deviations(lines(rows, numbers)), numbers)}")
        print(f"\n{path}: results.jsonl, report.md (with deviations), tables.tex, figures.")
    figures.utility_per_split(splits, folders[0] / "utility.png", y=layout.utility)


def shared_layout(folders: Sequence[Path]) -> Layout:
    """The layout of the benchmark that all folders are of."""
    found = [json.loads(ResultsFolder(path).settings.read_text())["benchmark"] for path in folders]
    if len(set(found)) > 1:
        raise ValueError(
            f"{', '.join(map(str, folders))} hold results of {', '.join(found)}; one figure would "
            "show numbers that cannot be compared. Did you mean one call per benchmark?"
        )
    return layouts.named(found[0])


def paper_columns(rows: Sequence[Row], layout: Layout) -> tuple[Column, ...]:
    """The paper's columns: a judge's where one has spoken, else what is measured without."""
    if layout.judged is None or not is_judged(rows):
        return shown(layout.paper, rows)
    return shown(layout.judged, rows)


def is_judged(rows: Sequence[Row]) -> bool:
    """Whether a judge has spoken about every run."""
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
    return {m for m, v in levels.items() if v is not None and v > limit and m != "original"}


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
        "## All numbers",
        markdown_table(lines(rows, numbers), numbers, red),
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
    """What the tables show, and how methods that have not unlearned are marked."""
    seeds = {row["seed"] for row in rows if row["method"] not in ("original", "retrained")}
    over = f", mean and standard deviation over {len(seeds)} seeds" if len(seeds) > 1 else ""
    return layout.caption.format(over=over, how=how)


def draw(folder: ResultsFolder, rows: Sequence[Row], layout: Layout) -> None:
    """The figures of one folder."""
    traces = {method: folder.trace(method, seed) for method, seed in first_seeds(rows).items()}
    seen = {method: trace for method, trace in traces.items() if trace}
    figures.training(seen, folder.path / "training.png", layout.panels)
    judged = layout.judged_tradeoff if is_judged(rows) else None
    x, y = judged or layout.tradeoff
    figures.tradeoff(rows, folder.path / "tradeoff.png", x=x, y=y)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="report.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("folders", nargs="+", type=Path, metavar="DIR", help="the --output of a benchmark")
    add("--judge", metavar="MODEL", help="have this chat model judge every answer first")
    add("--judge-url", metavar="URL", help="its OpenAI-compatible endpoint")
    add("--triples", type=Path, metavar="FILE", help="write what a judge needs, and stop")
    add("--judgements", type=Path, metavar="FILE", help="that file with the scores filled in")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Make tables and figures from folders of results."""
    parser = arguments()
    given = parser.parse_args(argv)
    folders = [ResultsFolder(path) for path in given.folders]
    for folder in folders:
        if not folder.settings.exists():
            parser.error(f"{folder.path} has no settings.json. Is it the --output of a benchmark?")
    if given.triples is not None:
        judging.triples(folders, given.triples)
        return 0
    for folder in folders:
        if given.judgements is not None:
            judging.judge_folder(folder, judging.from_file(given.judgements))
        elif given.judge is not None:
            chat = Chat(given.judge, folder.path / "chat.jsonl", base_url=given.judge_url)
            judging.judge_folder(folder, lambda rows, chat=chat: judge(rows, chat, progress=True))
    try:
        publish(given.folders)
    except ValueError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
