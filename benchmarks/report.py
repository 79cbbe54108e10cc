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
from statistics import harmonic_mean

from benchmarks import figures, judging
from benchmarks.examples import RIGHT, WRONG, examples
from benchmarks.latex import latex_table
from benchmarks.metrics.chat import Chat
from benchmarks.metrics.judge import judge
from benchmarks.results import ResultsFolder, Row, replace
from benchmarks.tables import (
    Column,
    lines,
    markdown_table,
    name_of,
    text_table,
    without_deviations,
)

TERMINAL = (
    Column("forget_probability", "Forget", "prob.", better=-1),
    Column("forget_rouge", "Forget", "ROUGE-L", better=-1),
    Column("forget_exact_match", "Forget", "exact", better=-1),
    Column("certificate", "Forget", "certif.", better=1),
    Column("retain_probability", "Retain", "prob.", better=1),
    Column("retain_rouge", "Retain", "ROUGE-L", better=1),
    Column("retain_exact_match", "Retain", "exact", better=1),
    Column("real_authors_rouge", "Neighbours", "authors", better=1),
    Column("world_facts_rouge", "Neighbours", "facts", better=1),
    Column("model_utility", "Utility", "MU", better=1),
    Column("forget_quality_log10", "Utility", "log FQ", digits=1, better=1),
    Column("gate_open", "Controller", "open"),
    Column("lambda", "Controller", "λ", digits=3),
    Column("seconds", "Time", "s", digits=1),
)

AUTOMATIC = (
    Column("model_utility", "Automatic", "MU", better=1),
    Column("forget_rouge", "Automatic", "Forget ROUGE", better=-1),
)
JUDGED = (
    *AUTOMATIC,
    Column("judge_retain", "Judge", "Retain", better=1),
    Column("judge_world_facts", "Judge", "World facts", better=1),
    Column("judge_real_authors", "Judge", "Real authors", better=1),
    Column("judge_hm", "Judge", "HM", better=1),
    Column("judge_forget", "Judge", "Forget", better=-1),
)
UNJUDGED = (
    *AUTOMATIC,
    Column("retain_rouge", "ROUGE-L (%)", "Retain", better=1, percent=True),
    Column("world_facts_rouge", "ROUGE-L (%)", "World facts", better=1, percent=True),
    Column("real_authors_rouge", "ROUGE-L (%)", "Real authors", better=1, percent=True),
    Column("rouge_hm", "ROUGE-L (%)", "HM", better=1, percent=True),
    Column("forget_rouge", "ROUGE-L (%)", "Forget", better=-1, percent=True),
)
CAPTION = (
    "Unlearning performance{over}. The best and second-best values are marked; methods that still "
    "say more of the forget set than a model that never saw it ({how}) take no part."
)


def publish(folders: Sequence[Path]) -> None:
    """Print the table of each folder; write its tables, figures and examples."""
    splits = {}
    for path in folders:
        folder = ResultsFolder(path)
        rows = with_derived(judging.with_judgements(folder))
        settings = json.loads(folder.settings.read_text())
        splits[str(settings["split"])] = rows
        replace(path / "report.md", markdown(folder, rows, settings))
        replace(path / "tables.tex", latex(rows))
        draw(folder, rows)
        print(f"\n{text_table(without_deviations(lines(rows, TERMINAL)), TERMINAL)}")
        print(f"\n{path}: results.jsonl, report.md (with deviations), tables.tex, figures.")
    figures.utility_per_split(splits, folders[0] / "utility.png", y="model_utility")


def with_derived(rows: Sequence[Row]) -> list[Row]:
    """The rows with the harmonic mean of the three utility ROUGEs."""
    names = ("retain_rouge", "real_authors_rouge", "world_facts_rouge")
    found = [[row.get(name) for name in names] for row in rows]
    return [
        row | {"rouge_hm": None if None in values else harmonic_mean(values)}
        for row, values in zip(rows, found, strict=True)
    ]


def paper_columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """The paper's columns where a judge has spoken, else ROUGE in their place."""
    judged = rows and all(row.get("judge_hm") is not None for row in rows)
    return JUDGED if judged else UNJUDGED


def not_unlearned(rows: Sequence[Row]) -> set[str]:
    """Methods whose forget ROUGE is above the retrained model's: the paper's red values."""
    column = (Column("forget_rouge", "", ""),)
    levels = {line.method: line.cells[0].mean for line in lines(rows, column)}
    limit = levels.get("retrained")
    if limit is None:
        return set()
    return {m for m, v in levels.items() if v is not None and v > limit and m != "original"}


def markdown(folder: ResultsFolder, rows: Sequence[Row], settings: Row) -> str:
    """Everything of a folder to read on: tables, notes on the settings, example answers."""
    columns = paper_columns(rows)
    red = not_unlearned(rows)
    first = first_seeds(rows)
    answers = {method: folder.answers_of(method, seed) for method, seed in first.items()}
    parts = [
        "# Results",
        caption(rows, "struck out"),
        markdown_table(lines(rows, columns), columns, red),
        "## All numbers",
        markdown_table(lines(rows, TERMINAL), TERMINAL, red),
        remarks("Notes on the settings", settings.get("notes", {})),
        remarks("How settings were found", settings.get("matched", {})),
        "## Example answers",
        f"{RIGHT}: every word of the truth, in order. {WRONG}: not so. Seed {min(first.values())}.",
        *(examples(answers, subset) for subset in ("forget", "retain")),
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


def latex(rows: Sequence[Row]) -> str:
    """The table in the paper's layout, and the one with every number."""
    red = not_unlearned(rows)
    return "\n\n".join(
        latex_table(lines(rows, columns), columns, caption(rows, "red"), red) + "\n"
        for columns in (paper_columns(rows), TERMINAL)
    )


def caption(rows: Sequence[Row], how: str) -> str:
    """What the tables show, and how methods that have not unlearned are marked."""
    seeds = {row["seed"] for row in rows if row["method"] not in ("original", "retrained")}
    over = f", mean and standard deviation over {len(seeds)} seeds" if len(seeds) > 1 else ""
    return CAPTION.format(over=over, how=how)


def draw(folder: ResultsFolder, rows: Sequence[Row]) -> None:
    """The figures of one folder."""
    traces = {method: folder.trace(method, seed) for method, seed in first_seeds(rows).items()}
    figures.training({m: t for m, t in traces.items() if t}, folder.path / "training.png")
    judged = paper_columns(rows) is JUDGED
    x, y = ("judge_forget", "judge_hm") if judged else ("forget_rouge", "model_utility")
    names = ("forget (judge, %)", "HM of the utility sets (judge, %)")
    labels = names if judged else ("forget ROUGE-L recall", "model utility")
    figures.tradeoff(rows, folder.path / "tradeoff.png", x=x, y=y, labels=labels)


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
    publish(given.folders)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
