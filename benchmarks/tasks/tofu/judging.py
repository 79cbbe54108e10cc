"""Judge the answers of finished runs: by a chat model, or by whoever fills in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report.results import ResultsFolder, Row, write_lines
from benchmarks.tasks.tofu.judge import judge_scores, read_judgements, write_triples

Judge = Callable[[Sequence[Row]], Sequence[int | None]]
Run = tuple[str, int]


def answered(folder: ResultsFolder) -> Iterator[tuple[Run, list[Row]]]:
    """The rows per question of every finished run."""
    for row in folder.rows():
        run = (row["method"], row["seed"])
        yield run, folder.answers_of(*run)


def judge_folder(folder: ResultsFolder, judge: Judge) -> None:
    """Write `judged.jsonl`: the judge's percentages for every finished run."""
    write_lines(folder.judged, _judged(folder, judge))


def _judged(folder: ResultsFolder, judge: Judge) -> Iterator[dict[str, Any]]:
    for (method, seed), rows in answered(folder):
        scores = judge_scores(rows, list(judge(rows)))
        yield {"method": method, "seed": seed, **scores}


def triples(folders: Sequence[ResultsFolder], path: Path) -> None:
    """Write what a judge needs for all runs of all folders into one file."""
    write_triples([row for f in folders for _, rows in answered(f) for row in rows], path)


def from_file(path: Path) -> Judge:
    """The judge that looks judgements up in a file with the scores filled in."""
    return lambda rows: read_judgements(rows, path)
