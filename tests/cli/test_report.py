"""The report: every number of it from report.json, self-contained, and readable."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import FORGET, RETAIN, Command, report, write
from torch_alm.cli import report as report_module
from torch_alm.cli.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    POINTS,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    thinned,
    ticks,
)

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """The text of a page, its links, and whether every element is closed."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(source)
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.links += [v for k, v in attrs if k in ("href", "src", "srcset", "data", "action")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.links += [v for k, v in attrs if k in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.text += data


def page(path: Path) -> tuple[Page, str]:
    source = (path / "report.html").read_text()
    return Page(source), source


@pytest.fixture
def unlearned(command: Command, tmp_path: Path, files: dict[str, Path]) -> Path:
    steps = ("--alpha", 2, "--epochs", 6, "--lr", "5e-3", "--batch-size", 3)
    assert command("unlearn", *steps, holdout=files["holdout"]) == 0
    return tmp_path / "out"


def test_report_json_holds_the_whole_run(unlearned: Path) -> None:
    found = report(unlearned)
    before, after = found["models"]
    assert (before["name"], after["name"]) == ("before", "after")
    for model in (before, after):
        assert set(model["numbers"]) == {"forget", "retain", "holdout"}
        assert 0 <= model["membership_auc"] <= 1
        assert [a["prompt"] for a in model["answers"]["forget"]] == [r["question"] for r in FORGET]
    assert {"certificate", "loss", "exact_match"} <= set(after["numbers"]["forget"])
    assert set(found["trace"][0]) == {"retain_loss", "forget", "violation", "lambda", "weight"}
    assert len(found["trace"]) == 12
    assert set(found["versions"]) == {"python", "torch-alm", "torch", "transformers", "peft"}
    assert found["settings"]["alpha"] == 2
    assert re.fullmatch(r".*forget\.jsonl, sha256 [0-9a-f]{16}", found["settings"]["forget"])


def test_lambda_in_the_trace_is_algorithm_1(unlearned: Path) -> None:
    found = report(unlearned)
    price = 0.0
    for row in found["trace"]:
        price = max(0.0, price + found["settings"]["mu"] * (2 - row["forget"]))
        assert row["violation"] == pytest.approx(2 - row["forget"], abs=1e-12)
        assert row["lambda"] == row["weight"] == pytest.approx(price, abs=1e-9)


def test_the_page_stands_alone_and_shows_the_numbers(unlearned: Path) -> None:
    shown, source = page(unlearned)
    assert shown.links == []
    assert not re.search(r"https?:|<script|@import|url\(", source)
    found = report(unlearned)
    for model in found["models"]:
        assert f"{model['numbers']['forget']['loss']:.2f}" in shown.text
        assert f"{model['membership_auc']:.2f}" in shown.text
    assert all(row["question"] in shown.text for row in FORGET)
    assert "prefers-color-scheme: dark" in source
    assert 'name="viewport"' in source
    assert source.count("<svg") == 3


def test_what_stands_in_the_files_is_text_not_markup(
    command: Command, tmp_path: Path, files: dict[str, Path]
) -> None:
    nasty = [{"question": "<script>alert(1)</script> A0", "answer": "<b>A0</b> & more"}]
    assert command("evaluate", forget=write(tmp_path / "x.jsonl", nasty)) == 0
    _, source = page(tmp_path / "out")
    assert "<script>" not in source
    assert "&lt;script&gt;alert(1)" in source


def test_evaluate_is_the_same_report_of_one_model_or_two(
    command: Command, tmp_path: Path, unlearned: Path, folder: Path, files: dict[str, Path]
) -> None:
    options = ("--original", folder)
    saved = unlearned / "model"
    code = command("evaluate", *options, model=saved, output="e", holdout=files["holdout"])
    assert code == 0
    one, two = report(unlearned), report(tmp_path / "e")
    assert one.keys() == two.keys()
    for mine, theirs in zip(one["models"], two["models"], strict=True):
        assert mine["numbers"] == theirs["numbers"]
        assert mine["answers"] == theirs["answers"]
        assert mine["membership_auc"] == theirs["membership_auc"]
    shown, _ = page(tmp_path / "e")
    assert "How it went" not in shown.text


def test_rows_of_every_kind(command: Command, tmp_path: Path) -> None:
    words = [w for row in FORGET for w in (row["question"], row["answer"])]
    mixed = [
        {"prompt": words[0], "completion": words[1]},
        {"text": " ".join(words[:4])},
        {"messages": [{"role": "user", "content": words[2]},
                      {"role": "assistant", "content": words[3]}]},
    ]  # fmt: skip
    path = write(tmp_path / "mixed.jsonl", mixed)
    assert command("unlearn", "--epochs", 1, forget=path) == 0
    answers = report(tmp_path / "out")["models"][0]["answers"]["forget"]
    assert [a["prompt"] for a in answers[::2]] == [words[0], words[2]]
    assert answers[0]["answer"] == answers[0]["reference"] == words[1]
    given, rest = answers[1]["prompt"], answers[1]["reference"]
    assert f"{given} {rest}" == " ".join(words[:4])
    assert 0.4 < len(given) / len(f"{given} {rest}") < 0.6


def test_verdict_follows_the_whole_forget_set_not_the_last_batch() -> None:
    numbers = {"forget": {"loss": 3.0, "certificate": 0.97}}
    content = {
        "goal": {"kind": "loss", "alpha": 4.0, "source": "x"},
        "models": [{"numbers": numbers}],
    }
    told = report_module.verdict(content)
    assert told is not None
    assert told["tone"] == "missed"
    assert "3.00" in told["text"]
    content["goal"] = {"kind": "rate", "alpha": 0.95, "source": "x"}
    told = report_module.verdict(content)
    assert told is not None
    assert told["tone"] == "met"
    assert "97.0%" in told["text"]
    for kind, number in (("loss", 3.0), ("rate", 0.97)):
        content["goal"] = {"kind": kind, "alpha": number, "source": "x"}
        told = report_module.verdict(content)
        assert told is not None
        assert told["tone"] == "met", "what reaches the level exactly meets it"


@pytest.mark.parametrize(("kind", "title"), [("loss", "Forget loss"), ("rate", "Certified rate")])
def test_lines_are_those_of_the_trace_beside_the_level(kind: str, title: str) -> None:
    keys = ("forget", "retain_loss", "lambda", "weight")
    trace = [dict(zip(keys, numbers, strict=True)) for numbers in ((1, 2, 3, 0), (4, 5, 6, 7))]
    goal = {"kind": kind, "alpha": 0.5, "source": "x"}
    charts = report_module.lines({"trace": trace, "goal": goal})
    assert [list(chart.values) for chart in charts] == [[1, 4], [2, 5], [3, 6]]
    assert [chart.level for chart in charts] == [0.5, None, None]
    assert charts[0].title == title
    assert all(list(chart.is_open) == [False, True] for chart in charts)


def test_chart_lies_within_its_frame_and_marks_open_stretches() -> None:
    values = [0.0, 1.0, float("nan"), -2.0, 5.0]
    chart = Chart("x", values, 4.0, [True, True, False, False, True])
    points = [tuple(map(float, p.split(","))) for p in chart.points.split()]
    assert len(points) == 4, "what is not finite has no place"
    assert all(LEFT <= x <= WIDTH - RIGHT and TOP <= y <= HEIGHT - BOTTOM for x, y in points)
    assert min(y for _, y in points) == TOP  # the largest value is the highest point
    assert len(chart.bands) == 2
    assert sum(width for _, width in chart.bands) == pytest.approx((WIDTH - LEFT - RIGHT) / 2)
    level = chart.level_y
    assert level is not None
    assert TOP < level < HEIGHT - BOTTOM
    assert [label for _, label in chart.y_ticks] == ["-2", "0", "2", "4"]
    assert [label for _, label in chart.x_ticks] == ["1", "3", "5"]


@pytest.mark.parametrize("count", [1, 2, POINTS, POINTS + 1, 10_007])
def test_long_runs_are_thinned_by_means(count: int) -> None:
    shown = thinned([float(i) for i in range(count)])
    assert len(shown) <= POINTS
    assert all(step == pytest.approx(value) for step, value in shown)
    assert thinned([]) == []


@pytest.mark.parametrize("high", [1e-6, 0.03, 1, 7, 12, 1e5])
def test_ticks_are_few_and_round(high: float) -> None:
    marks = ticks(0.0, high)
    assert 2 <= len(marks) <= 6
    assert marks[0] == 0
    assert marks[-1] <= high * (1 + 1e-9)


def test_svg_is_xml(unlearned: Path) -> None:
    for drawing in re.findall(r"<svg.*?</svg>", page(unlearned)[1], re.DOTALL):
        assert ElementTree.fromstring(drawing).attrib["viewBox"] == f"0 0 {WIDTH} {HEIGHT}"


def test_terminal_fits_80_columns(
    command: Command, tmp_path: Path, files: dict[str, Path], capsys: Any
) -> None:
    steps = ("--epochs", 2, "--rows", 5)
    assert command("unlearn", *steps, holdout=files["holdout"]) == 0
    assert command("attack", output="a") == 0
    told = capsys.readouterr()
    lines = told.out.splitlines() + re.split(r"[\r\n]+", told.err)
    assert max(map(len, lines)) <= 80
    bars = [line for line in lines if "lambda" in line and "/2" in line]
    assert any("violation" in bar and "gate open" in bar for bar in bars)
    assert any(line.startswith("Forget (5 rows)") for line in lines)
    assert len(report(tmp_path / "out")["models"][0]["answers"]["retain"]) == 5 < len(RETAIN)
