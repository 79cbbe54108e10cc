"""The results folder: whole lines, honest settings; its table, figures and report."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from benchmarks import methods
from benchmarks.report import figures, page
from benchmarks.report.figures import Axis
from benchmarks.report.page import Layout
from benchmarks.report.results import ResultsFolder, append_line, read_lines
from benchmarks.report.tables import Column, markdown, table

COLUMNS = (Column("utility", "MU ↑"), Column("rouge", "ROUGE ↓", 3), Column("lambda", "λ", 1))
UTILITY = Axis("utility", "model utility")
LAYOUT = Layout(COLUMNS, Axis("rouge", "forget ROUGE-L"), UTILITY)


def row(method: str, seed: int = 0, **numbers: float | None) -> dict[str, Any]:
    return {"method": method, "seed": seed, **numbers}


ROWS = [
    row("saul", 0, utility=0.5, rouge=0.01, **{"lambda": 0.25}),
    row("saul", 1, utility=0.6, rouge=0.03, **{"lambda": 0.75}),
    row("original", utility=0.6, rouge=0.9),
    row("dual_adamw+alm", utility=0.554, rouge=0.02, **{"lambda": 2.0}),
    row("dual_adamw", utility=0.45, rouge=None),
]


def test_a_line_per_method_in_order_with_mean_and_sample_deviation() -> None:
    found = table(ROWS, COLUMNS)
    assert list(found.index) == ["Original model", "Dual AdamW", "Dual AdamW + ALM", "SAUL"]
    assert found["MU ↑"]["SAUL"] == "0.55 ± 0.07"
    assert found["ROUGE ↓"]["SAUL"] == "0.020 ± 0.014"
    assert found["λ"]["Dual AdamW + ALM"] == "2.0"
    assert found["ROUGE ↓"]["Dual AdamW"] == found["λ"]["Original model"] == "–"
    assert "| SAUL             | 0.55 ± 0.07 |" in markdown(found)


@pytest.mark.parametrize(
    ("alone", "said"),
    [(0.596, "The control holds"), (0.5, "**The control does not hold**"), (None, "No contr")],
)
def test_the_control_says_what_a_table_can_show(alone: float | None, said: str) -> None:
    rows = [row("original", utility=0.6), row(methods.CONTROL, utility=alone)]
    assert page.describe_control(rows, UTILITY).startswith(said)


def test_publishing_writes_the_table_and_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ResultsFolder(tmp_path)
    folder.claim({"methods": {}, "notes": {"saul": "read so and so"}})
    steps = [{"step": n, "weight": 0.1 * n, "violation": 1.0 - n} for n in range(1, 4)]
    for run in ROWS:
        folder.write("traces", run["method"], run["seed"], steps if "+" in run["method"] else [])
        folder.append(run)
    page.publish(folder, LAYOUT)
    printed = capsys.readouterr().out
    assert "\nSAUL " in printed and max(map(len, printed.splitlines()[:-1])) <= page.COLUMNS
    text = (tmp_path / "report.md").read_text()
    assert "| SAUL " in text and "- SAUL: read so and so." in text
    for name in ("training", "tradeoff"):
        assert imread(tmp_path / f"{name}.png").std() > 0.01


@pytest.mark.parametrize(("alpha", "goals"), [(4.0, {4.0}), (0.5, set[float]())])
def test_a_goal_is_drawn_among_losses_only_if_it_is_one(alpha: float, goals: set[float]) -> None:
    steps = [{"alpha": alpha, "violation": 4.0 - n, "forget_loss": 1.0 * n} for n in range(6)]
    assert figures.goal_heights(steps) == goals


# ---- the folder ---------------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {"options": {"quick": True}, "methods": {"saul": {"lr": 0.1}}}


def claimed(path: Path) -> ResultsFolder:
    folder = ResultsFolder(path)
    folder.claim(SETTINGS)
    return folder


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    folder = claimed(tmp_path)
    rows = [{"method": "saul", "seed": n, "text": "a\u2028b\nc é", "share": 0.1} for n in range(3)]
    for row in rows:
        folder.append(row)
        append_line(tmp_path / "new" / "lines.jsonl", row)
    assert folder.rows() == rows == read_lines(tmp_path / "new" / "lines.jsonl")


@pytest.mark.parametrize("cut", range(1, 20, 3))
def test_a_cut_last_line_is_dropped_and_only_that(cut: int, tmp_path: Path) -> None:
    folder = claimed(tmp_path)
    folder.append({"method": "saul", "seed": 0})
    folder.append({"method": "saul", "seed": 1})
    folder.results.write_bytes(folder.results.read_bytes()[:-cut])
    claimed(tmp_path).append({"method": "saul", "seed": 2})
    assert [row["seed"] for row in folder.rows()] == [0, 2]


def test_more_methods_are_no_difference_and_a_changed_number_is(tmp_path: Path) -> None:
    claimed(tmp_path).append({"method": "saul", "seed": 0})
    ResultsFolder(tmp_path).claim({**SETTINGS, "methods": {"npo": {"lr": 0.2}}, "torch": "2"})
    assert ResultsFolder(tmp_path).read_settings()["methods"].keys() == {"saul", "npo"}
    with pytest.raises(ValueError, match=r"methods\.saul\.lr was 0\.1 and is now 0\.3"):
        ResultsFolder(tmp_path).claim({**SETTINGS, "methods": {"saul": {"lr": 0.3}}})


def test_overwriting_starts_again_and_leaves_other_files_alone(tmp_path: Path) -> None:
    folder = claimed(tmp_path)
    folder.append({"method": "saul", "seed": 0})
    folder.write("traces", "saul", 0, [{"step": 1}])
    for name in ("notes.txt", "report.md"):
        (tmp_path / name).write_text("mine")
    folder.claim({"methods": {"npo": {}}}, overwrite=True)
    assert folder.rows() == [] == folder.read("traces", "saul", 0)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("settings.json", '{"theirs": 1}'),
        ("settings.json", "[]"),
        ("results.jsonl", '{"method": "mine"}'),  # no newline, as of a run that was cut off
        ("report.md", "mine"),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_files_that_no_run_has_written_are_left_as_they_are(
    name: str, content: str, overwrite: bool, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=rf"has a {name} but no settings.json of a run"):
        ResultsFolder(tmp_path).claim(SETTINGS, overwrite=overwrite)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {name: content}
