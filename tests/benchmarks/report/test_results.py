"""The results folder: whole lines, honest settings, nothing lost."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.report.results import ResultsFolder

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
    assert folder.rows() == rows


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
    assert ResultsFolder(tmp_path).described()["methods"].keys() == {"saul", "npo"}
    with pytest.raises(ValueError, match=r"methods\.saul\.lr was 0\.1 and is now 0\.3"):
        ResultsFolder(tmp_path).claim({**SETTINGS, "methods": {"saul": {"lr": 0.3}}})


def test_overwriting_starts_again_and_leaves_other_files_alone(tmp_path: Path) -> None:
    folder = claimed(tmp_path)
    folder.append({"method": "saul", "seed": 0})
    folder.write("traces", "saul", 0, [{"step": 1}])
    (tmp_path / "notes.txt").write_text("mine")
    folder.claim({"methods": {"npo": {}}}, overwrite=True)
    assert folder.rows() == [] == folder.read("traces", "saul", 0)
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
