"""The results folder: whole lines, honest settings, nothing lost."""

import json
import math
from argparse import ArgumentParser
from pathlib import Path

import pytest

from benchmarks.report.results import (
    RECORDED,
    ResultsFolder,
    parsed,
    read_lines,
    write_lines,
)

SETTINGS = {"benchmark": "toy", "methods": {"saul": {"lr": 0.1}}, "versions": {"torch": "1"}}


def claimed(path: Path) -> ResultsFolder:
    folder = ResultsFolder(path)
    folder.claim(SETTINGS)
    return folder


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    folder = claimed(tmp_path)
    rows = [{"method": "saul", "seed": n, "text": "a\u2028b\nc é", "share": 0.1} for n in range(3)]
    for row in rows:
        folder.append(row)
    assert folder.rows() == rows
    assert folder.finished() == {("saul", 0), ("saul", 1), ("saul", 2)}


@pytest.mark.parametrize("cut", range(1, 20))
def test_a_cut_last_line_is_dropped_and_only_that(cut: int, tmp_path: Path) -> None:
    folder = claimed(tmp_path)
    folder.append({"method": "saul", "seed": 0})
    folder.append({"method": "saul", "seed": 1})
    folder.results.write_bytes(folder.results.read_bytes()[:-cut])
    claimed(tmp_path).append({"method": "saul", "seed": 2})
    assert [row["seed"] for row in folder.rows()] == [0, 2]


def test_numbers_json_does_not_have_become_null(tmp_path: Path) -> None:
    folder = claimed(tmp_path)
    folder.append({"method": "saul", "seed": 0, "loss": math.inf, "parts": [math.nan, 1.0]})
    line = folder.results.read_text()
    assert json.loads(line, parse_constant=pytest.fail)["parts"] == [None, 1.0]


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    folder = claimed(tmp_path)
    folder.results.write_text('{"method": "saul", "seed": 0}\n{oops}\n')
    with pytest.raises(ValueError, match=r"results\.jsonl, line 2 is not valid JSON"):
        folder.rows()


def test_more_methods_and_other_versions_are_no_difference(tmp_path: Path) -> None:
    claimed(tmp_path).append({"method": "saul", "seed": 0})
    more = {"methods": {"npo": {"lr": 0.2}}, "versions": {"torch": "2"}}
    ResultsFolder(tmp_path).claim({**SETTINGS, **more})
    kept = json.loads((tmp_path / "settings.json").read_text())
    assert kept["methods"] == {"saul": {"lr": 0.1}, "npo": {"lr": 0.2}}


def test_a_changed_hyperparameter_is_refused_by_name(tmp_path: Path) -> None:
    claimed(tmp_path).append({"method": "saul", "seed": 0})
    with pytest.raises(ValueError, match=r"methods\.saul\.lr was 0\.1 and is now 0\.3"):
        ResultsFolder(tmp_path).claim({**SETTINGS, "methods": {"saul": {"lr": 0.3}}})


def test_a_folder_without_results_takes_any_settings(tmp_path: Path) -> None:
    claimed(tmp_path)
    ResultsFolder(tmp_path).claim({"benchmark": "other"})
    assert json.loads((tmp_path / "settings.json").read_text())["benchmark"] == "other"


def test_results_of_unknown_settings_are_refused(tmp_path: Path) -> None:
    claimed(tmp_path).append({"method": "saul", "seed": 0})
    (tmp_path / "settings.json").unlink()
    with pytest.raises(ValueError, match=r"no settings\.json"):
        claimed(tmp_path)
    assert ResultsFolder(tmp_path).finished() == {("saul", 0)}


def test_overwriting_leaves_files_alone_that_are_not_ours(tmp_path: Path) -> None:
    folder = claimed(tmp_path)
    folder.write_trace("saul", 0, [{"step": 1}])
    (tmp_path / "report.md").write_text("of the run")
    (tmp_path / "notes.txt").write_text("mine")
    folder.claim({"benchmark": "other"}, overwrite=True)
    assert folder.trace("saul", 0) == []
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("settings.json", '{"theirs": 1}'),
        ("settings.json", "[]"),
        ("results.jsonl", '{"method": "mine"}'),  # no newline, as of a run that was cut off
        ("trials.jsonl", "x"),
        ("report.md", "mine"),
    ],
)
def test_files_that_no_run_has_written_are_left_as_they_are(
    name: str, content: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=rf"has a {name} but no settings.json of a run"):
        claimed(tmp_path)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {name: content}


def test_overwriting_looks_where_runs_write(tmp_path: Path) -> None:
    folder = claimed(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x-seed1.jsonl").write_text("{}")
    folder.claim(SETTINGS, overwrite=True)
    assert (tmp_path / "mine" / "x-seed1.jsonl").exists()


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_lines(path, [{"step": 1}])
    with pytest.raises(TypeError):
        write_lines(path, [{"step": 1}, {"step": object()}])
    assert read_lines(path) == [{"step": 1}]
    assert [file.name for file in tmp_path.iterdir()] == ["trace.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "folder"),
    [
        ([], RECORDED),
        (["--quick"], Path("results")),
        (["--quick", "--output", "mine"], Path("mine")),
        (["--output", "mine"], Path("mine")),
    ],
)
def test_toy_sizes_never_replace_recorded_results(arguments: list[str], folder: Path) -> None:
    parser = ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    assert parsed(parser, arguments).output == folder
