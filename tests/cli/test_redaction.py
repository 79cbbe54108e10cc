"""Redacted reports: nothing of the rows is left in any file of them, nor on the terminal."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import FINISHED, FORGET, HOLDOUT, RETAIN, Command, report, write
from torch_alm.cli.redaction import mark, redacted

ROWS = [*FORGET, *RETAIN, *HOLDOUT]
# Every word of the rows but those that any page of English has, which are sought in pairs
COMMON = {"Where", "does", "live", "lives", "in", "?", "."}
TEXTS = {text for row in ROWS for text in row.values()}
NAMES = {word for text in TEXTS for word in text.split()} - COMMON
SOUGHT = {*NAMES, *TEXTS, "Where does", "lives in", "live ?"}
WORDS = ("--epochs", 2, "--lr", "1e-3", "--redact", "--anyway")


def left(text: str) -> list[str]:
    return [word for word in SOUGHT if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)]


def written(folder: Path) -> str:
    """All of the output but the model, whose tokenizer knows the words of anybody, and weights."""
    found = [path for path in folder.rglob("*") if path.is_file() and "model" not in path.parts[-2]]
    found = [path for path in found if path.suffix != ".pt"]
    assert {"report.html", "report.json"} <= {path.name for path in found}
    return "".join(path.read_bytes().decode("utf-8", "replace") for path in found)


def test_the_rows_would_be_found(command: Command, tmp_path: Path) -> None:
    assert command("evaluate", output="plain") == 0
    assert {"A0", "Rome", "Where does"} <= set(left(written(tmp_path / "plain")))


@pytest.mark.parametrize("verb", ["unlearn", "evaluate", "attack"])
@pytest.mark.parametrize("how", [(), ("--json",)])
def test_nothing_of_the_rows_is_in_a_redacted_report(
    command: Command, tmp_path: Path, files: dict[str, Path], capsys: Any, verb: str, how: Any
) -> None:
    words = WORDS if verb == "unlearn" else ("--redact", "--rows", 4)
    assert command(verb, *words, *how, holdout=files["holdout"]) in FINISHED
    told = capsys.readouterr()
    assert left(written(tmp_path / "out")) == []
    assert left(told.out + told.err) == []
    assert "[redacted: " in written(tmp_path / "out")


def test_numbers_and_places_are_those_of_the_whole_report(command: Command, tmp_path: Path) -> None:
    assert command("evaluate", output="plain") == 0
    assert command("evaluate", "--redact", output="bare") == 0
    (plain,), (bare,) = (report(tmp_path / name)["models"] for name in ("plain", "bare"))
    assert plain["numbers"] == bare["numbers"]
    for one, other in zip(plain["answers"]["forget"], bare["answers"]["forget"], strict=True):
        texts = {key: mark(one[key]) for key in ("prompt", "reference", "answer")}
        assert other == {**one, **texts}


def test_what_is_not_known_is_told_without_the_rows(
    command: Command, tmp_path: Path, capsys: Any
) -> None:
    told = "zyxwv unheard"
    path = write(tmp_path / "new.jsonl", [{"question": told, "answer": "A3 Kyiv . Kyiv"}])
    assert command("unlearn", "--redact", forget=path) == 2
    found = capsys.readouterr()
    assert left(found.out + found.err) == [] and "zyxwv" not in found.out + found.err
    assert "none is shown, by --redact" in " ".join(found.err.split())


def test_a_run_that_was_stopped_has_written_none_of_the_rows(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def fails(*_: object, **__: object) -> None:
        seen.append((tmp_path / "out" / "unfinished" / "run.json").read_text())
        raise ZeroDivisionError

    monkeypatch.setattr("torch_alm.cli.unlearn.save_model", fails)
    with pytest.raises(ZeroDivisionError):
        command("unlearn", *WORDS)
    assert left(seen[0]) == [] and json.loads(seen[0])["before"]["known_before"] is True
    shutil.rmtree(tmp_path / "out")


def test_a_mark_counts_words_and_says_nothing_else() -> None:
    assert redacted({"answer": "one two", "answers": ["one", None], "where": "f, line 1"}) == {
        "answer": "[redacted: 2 words]",
        "answers": ["[redacted: 1 word]", None],
        "where": "f, line 1",
    }
    assert mark("0171 555") == mark("0172 666")
