"""The reports say what was asked and heard; files are whole or not at all, and nobody else's."""

import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.command.conftest import FINISHED, FORGET, Command, Refused, fits, report, write
from torch_alm.command.output import check_output
from torch_alm.unlearning.errors import Refusal
from torch_alm.unlearning.folders import REPORTS, make_finite, write_folder, write_text

MODEL = "model"


def test_report_json_holds_the_whole_run(unlearned: Path) -> None:
    found = report(unlearned)
    assert [m["name"] for m in found["models"]] == ["before", "after"]
    assert found["settings"]["method"] == "dual" and found["settings"]["seed"] == 0
    assert {*found["trace"][0]} == {"lr", "retain_loss", "forget", "lambda", "weight"}
    assert {*found["files"]} == {"report.html", "report.json", "model"}
    assert {*found["versions"]} >= {"torch", "transformers", "torch-alm"}
    assert re.match(r"\d{4}-\d\d-\d\dT", found["run"]["date"])


def test_lambda_in_the_trace_is_algorithm_1(unlearned: Path) -> None:
    """lambda+ = [lambda + mu (alpha - F)]_+, where forgetting aims a tenth above its level."""
    found = report(unlearned)
    mu, aim, before = found["settings"]["mu"], 1.1 * found["goal"]["alpha"], 0.0
    for row in found["trace"][:5]:  # up to the first look, after which the aim may be higher
        assert row["weight"] == pytest.approx(
            max(0.0, before + mu * (aim - row["forget"])), abs=1e-6
        )
        assert row["lambda"] in (pytest.approx(row["weight"]), pytest.approx(row["weight"] / 2))
        before = row["lambda"]


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]


def test_the_page_stands_alone_with_one_figure_and_the_answers_of_both_models(
    unlearned: Path,
) -> None:
    text = (unlearned / "report.html").read_text()
    page = Page(text)
    assert "script" not in page.tags and page.tags.count("figure") == 1
    assert all(link.startswith("#") for link in page.links)
    assert text.index("The goal is") < text.index("Answers: forget") < text.index("What it knows")
    for row in FORGET:
        assert row["answer"] in text
    start, end = text.index("<svg"), text.index("</svg>") + 6
    assert ElementTree.fromstring(text[start:end]).tag.endswith("svg")


def test_what_stands_in_the_files_is_text_not_markup(command: Command, tmp_path: Path) -> None:
    rows = [{**FORGET[0], "question": "<script>alert(1)</script> & {{ x }}"}]
    assert command("evaluate", forget=write(tmp_path / "f.jsonl", rows)) == 0
    text = (tmp_path / "out" / "report.html").read_text()
    assert "<script>" not in text and "&lt;script&gt;" in text


def test_rows_that_changed_most_come_first(unlearned: Path) -> None:
    text = (unlearned / "report.html").read_text()
    found = report(unlearned)["models"]
    order = sorted(found[1]["answers"]["forget"], key=lambda row: -row["rouge"])
    part = text[text.index("Answers: forget") : text.index("Answers: retain")]
    places = [part.index(f'<div class="asked">{row["prompt"]}') for row in order]
    rouges = [row["rouge"] for row in order]
    assert len({*rouges}) > 1
    assert all(a < b for a, b, x, y in zip(places, places[1:], rouges, rouges[1:], strict=False)
               if x != y)  # fmt: skip


def test_evaluate_is_the_same_report_of_one_model_or_two(
    command: Command, tmp_path: Path, folder: Path, unlearned: Path, capsys: Any
) -> None:
    capsys.readouterr()
    assert command("evaluate", "--original", folder, model=unlearned / "model") == 0
    told = capsys.readouterr().out
    assert all(map(fits, told.splitlines()))
    found = report(tmp_path / "out")
    assert [each["name"] for each in found["models"]] == ["original", "model"]
    after = report(unlearned)["models"][1]["numbers"]["forget"]
    assert found["models"][1]["numbers"]["forget"] == pytest.approx(after)
    assert found["verdict"] is None


@pytest.mark.parametrize("verb", ["evaluate", "attack"])
def test_nothing_is_overwritten_without_force_and_nothing_of_others_with_it(
    command: Command, refused: Refused, tmp_path: Path, verb: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("three years")
    (out / "report.json").write_text("{}")
    steps = ("--relearn", 0) if verb == "attack" else ()
    assert "is not empty" in refused(verb, *steps)
    assert "report.json was not written by torch-alm" in refused(verb, "--force", *steps)
    (out / "report.json").unlink()
    for _ in range(2):
        assert command(verb, "--force", *steps) in FINISHED
    assert (out / "thesis.txt").read_text() == "three years"


@pytest.mark.parametrize("text", ['["model"]', "{", '{"versions": 1}'])
def test_what_somebody_put_there_is_not_replaced(
    refused: Refused, tmp_path: Path, unlearned: Path, text: str
) -> None:
    out = shutil.copytree(unlearned, tmp_path / "out")
    (out / "report.json").write_text(text)
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert "was not written by torch-alm" in refused("unlearn", "--steps", 1, "--force")
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("place", ["", "inside", "deep/inside"])
def test_nothing_is_written_into_the_folder_of_a_model(
    refused: Refused, folder: Path, tmp_path: Path, place: str
) -> None:
    for verb in ("unlearn", "evaluate"):
        assert "would write into the folder of the model" in refused(
            verb, "--force", output=str(folder / place)
        )


def test_a_model_is_not_replaced_by_its_own_result(
    refused: Refused, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    model = tmp_path / "out" / MODEL
    os.symlink(folder, model)
    assert "or replace it" in refused("unlearn", "--force", model=model)


def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refusal, match="file is no folder, or read-only"):
        check_output(tmp_path / "file" / "out", REPORTS, [], force=False)
    monkeypatch.setattr("torch_alm.command.output.os.access", lambda *_: False)
    with pytest.raises(Refusal, match=f"{tmp_path} is no folder, or read-only"):
        check_output(tmp_path / "a" / "b", REPORTS, [], force=False)


def test_a_file_or_folder_that_cannot_be_written_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_text("old")

    def fails(draft: Path) -> None:
        (draft / "b").write_text("new")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_folder(tmp_path / "a", fails)
    monkeypatch.setattr("os.replace", lambda *_: fails(tmp_path))
    with pytest.raises(OSError, match="No space"):
        write_text(tmp_path / "a" / "b", "new")
    assert (tmp_path / "a" / "b").read_text() == "old"
    assert [p.name for p in tmp_path.rglob(".*")] == []


def test_a_full_disk_is_a_sentence(
    command: Command, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch_alm.unlearning.report.write_json", fails)
    assert command("evaluate") == 2
    assert "No space left on device" in capsys.readouterr().err


def test_numbers_json_has_no_word_for() -> None:
    found = make_finite({"a": [1.5, float("nan")], 2: (float("inf"), "x", True)})
    assert json.dumps(found) == '{"a": [1.5, null], "2": [null, "x", true]}'


def test_a_bad_model_folder_is_a_sentence(refused: Refused, tmp_path: Path, folder: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name, told in (("", "has no config.json"), ("config.json", "has no tokenizer beside it")):
        if name:
            (bare / name).write_bytes((folder / name).read_bytes())
        assert told in refused("evaluate", model=bare)
    assert "is no folder" in refused("evaluate", model=tmp_path / "nowhere")
