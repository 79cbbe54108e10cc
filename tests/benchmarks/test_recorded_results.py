"""Recorded tables are written from recorded numbers, never by hand."""

import json
from pathlib import Path

import pytest

from benchmarks.report.results import ResultsFolder
from benchmarks.studies.auto.table import diverged, is_solved
from benchmarks.studies.auto.table import page as page_of_rules
from benchmarks.studies.controllers.table import markdown, more_lines
from benchmarks.studies.thresholds.report import page

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
CONTROLLERS = json.loads((RESULTS / "controllers.json").read_text())
THRESHOLDS = sorted(path.parent for path in RESULTS.glob("thresholds/*/results.jsonl"))


def test_the_comparison_of_controllers_is_written_from_its_numbers() -> None:
    assert (RESULTS / "controllers.md").read_text() == markdown(CONTROLLERS)


def test_the_recorded_comparison_meets_its_targets() -> None:
    ours = CONTROLLERS["torch-alm"]["every 50"]
    assert ours["of"] >= 21 and ours["1e-3"] >= 19 and ours["1e-5"] >= 18
    mean, stored, acting = CONTROLLERS["filtered noise"]
    assert mean <= 0.05 and stored <= 0.1 and acting <= 0.1


def test_further_problems_are_counted() -> None:
    more = {
        "a": {"scipy": 0.0, "as it is": [1e-6, 1e-4], "growing": [0.0, 0.0]},
        "b": {"scipy": 1.0, "as it is": [0.5, 0.0], "growing": [0.0, 1e-4]},
    }
    assert more_lines(more) == [
        "- the penalty as it is: 1 of 2 to 1e-3, 0 to 1e-5",
        "- the penalty growing: 2 of 2 to 1e-3, 1 to 1e-5",
        "- SciPy's SLSQP from the same starts: 1 of 2 to 1e-5",
    ]
    assert "| a | 0e+00 | 1e-04 | 0e+00 |" in markdown({**CONTROLLERS, "more": more})


@pytest.mark.parametrize("path", THRESHOLDS, ids=lambda path: path.name)
def test_tables_of_thresholds_are_written_from_their_lines(path: Path) -> None:
    part = path.name.rpartition("-")[2]
    assert (path / "report.md").read_text() == page(ResultsFolder(path), part)


AUTO = json.loads((RESULTS / "auto" / "auto.json").read_text())["rows"]


def test_the_comparison_of_ways_to_mu_is_written_from_its_rows() -> None:
    assert (RESULTS / "auto" / "auto.md").read_text() == page_of_rules(AUTO)


def test_no_cell_diverges_under_the_rule() -> None:
    rows = [row for row in AUTO if "auto" in row["ways"]]
    assert len({row["problem"] for row in rows}) == 22
    assert diverged(rows) == []


def test_the_rule_solves_more_than_a_mu_that_is_tuned_per_problem() -> None:
    rows = [row for row in AUTO if row["kind"] == "main" and "every 1" in row["ways"]]
    solved = sum(is_solved(row["ways"]["auto"][0]) for row in rows)
    tuned = 0
    for name in {row["problem"] for row in rows}:
        own = [row["ways"]["every 1"] for row in rows if row["problem"] == name]
        tuned += max(sum(map(is_solved, column)) for column in zip(*own, strict=True))
    assert solved > tuned > 0
