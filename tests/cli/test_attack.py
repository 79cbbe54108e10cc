"""`torch-alm attack`: what comes back, measured on the right rows, with the model as it was."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.conftest import FORGET, RETAIN, Command, report, write
from torch_alm.cli.windows import windows
from torch_alm.language import encode

NAMES = ["relearn forget", "relearn retain", "int8", "int4", "answer prefix"]


def test_every_attack_has_numbers_before_and_after(
    command: Command, tmp_path: Path, folder: Path, capsys: Any
) -> None:
    saved = (folder / "model.safetensors").read_bytes()
    options = ("--relearn", 2, "--relearn-steps", 3, "--relearn-lr", "1e-2")
    assert command("attack", *options) == 0
    (found,) = report(tmp_path / "out")["attacks"]
    assert [row["name"] for row in found["rows"]] == NAMES
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("No paraphrases: neither --paraphrases nor")
    assert [line for line in told if line.startswith("model: ")] == [f"model: {n}" for n in NAMES]
    assert told[-1].endswith("report.json.")
    assert report(tmp_path / "out")["title"] == f"Attacks on {folder.name}"
    rows = {row["name"]: row for row in found["rows"]}
    # the examples that were shown are not asked
    assert rows["relearn forget"]["after"]["rows"] == len(FORGET) - 2
    assert rows["relearn forget"]["before"]["rows"] == len(FORGET) - 2
    assert rows["int8"]["after"]["rows"] == len(FORGET)
    # the model knows the answers: rounding to 255 levels does not make it forget them
    assert rows["int8"]["before"]["exact_match"] == rows["int8"]["after"]["exact_match"] == 1
    assert rows["int8"]["before"]["loss"] != rows["int8"]["after"]["loss"]
    assert rows["int8"]["answers"] == [row["answer"] for row in FORGET]
    attackers = [rows[name]["attacker"] for name in (*NAMES[:2], NAMES[-1])]
    assert [a.pop("final loss", 0) > 0 for a in attackers] == [True, True, False]
    assert attackers == [{"examples": 2}, {"examples": 2}, {"share": 0.25}]
    assert (folder / "model.safetensors").read_bytes() == saved
    assert "What comes back" in (tmp_path / "out" / "report.html").read_text()


def test_paraphrases_come_from_the_rows_or_from_a_file(command: Command, tmp_path: Path) -> None:
    reworded = [{**row, "paraphrased_question": row["question"]} for row in FORGET]
    code = command("attack", "--relearn", 0, forget=write(tmp_path / "f.jsonl", reworded))
    assert code == 0
    rows = report(tmp_path / "out")["attacks"][0]["rows"]
    assert [row["name"] for row in rows] == ["int8", "int4", "paraphrase", "answer prefix"]
    assert rows[2]["before"] == rows[2]["after"], "the same words, the same answers"
    path = write(tmp_path / "p.jsonl", FORGET[:2])
    assert command("attack", "--relearn", 0, "--paraphrases", path, output="b") == 0
    rows = report(tmp_path / "b")["attacks"][0]["rows"]
    assert rows[2]["after"]["rows"] == 2


def test_what_the_attacker_has_is_what_was_asked_for(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def noted(model: Any, tokenizer: Any, forget: Any, retain: Any, has: Any, **more: Any) -> Any:
        seen.update(vars(has), forget=len(forget), retain=len(retain), **more)
        return iter(())

    monkeypatch.setattr("torch_alm.language.attack", noted)
    numbers = {"relearn": 3, "relearn-steps": 5, "relearn-lr": 0.5, "prefix": 0.75,
               "batch-size": 2, "seed": 7, "rows": 4, "precision": "bf16"}  # fmt: skip
    words = [word for name, value in numbers.items() for word in (f"--{name}", value)]
    assert command("attack", *words) == 0
    with seen.pop("autocast")():
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16
    expected = {"relearn_rows": 3, "relearn_steps": 5, "relearn_lr": 0.5, "prefix": 0.75,
                "batch_size": 2, "seed": 7, "bits": (8, 4), "paraphrased": [],
                "forget": 4, "retain": 8}  # fmt: skip
    assert {name: seen[name] for name in expected} == expected


def test_rows_that_are_asked_are_the_first_and_of_the_length_that_was_asked_for(
    command: Command, tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, ...]] = []

    def noted(model: Any, tokenizer: Any, forget: Any, retain: Any, has: Any, **more: Any) -> Any:
        seen.append((forget, retain, more["paraphrased"], more["max_new_tokens"]))
        return iter(())

    monkeypatch.setattr("torch_alm.language.attack", noted)
    reworded = [{**row, "paraphrased_question": f"{row['answer']} Where ?"} for row in FORGET[1:]]
    paths = {"forget": write(tmp_path / "f.jsonl", [FORGET[0], *reworded])}
    assert command("attack", "--rows", 2, "--max-length", 14, **paths) == 0
    other = write(tmp_path / "p.jsonl", FORGET[2:])
    words = ("--rows", 2, "--max-length", 14, "--paraphrases", other)
    assert command("attack", *words, output="b", **paths) == 0
    first, other, kept = ([part for row in rows for part in windows(encode(tokenizer, **row), 14)]
                          for rows in (FORGET, FORGET[2:], RETAIN))  # fmt: skip
    questions = [(row["paraphrased_question"], row["answer"]) for row in reworded]
    asked = [part for row in questions for part in windows(encode(tokenizer, *row), 14)]
    assert len(first) == 2 * len(FORGET)
    assert seen == [(first[:2], kept, asked[:2], 200), (first[:2], kept, other[:2], 200)]


def test_a_second_model_stands_beside(command: Command, tmp_path: Path, folder: Path) -> None:
    assert command("attack", "--relearn", 0, "--compare", folder) == 0
    found = report(tmp_path / "out")
    assert found["models"] == []
    first, second = found["attacks"]
    assert (first["name"], second["name"]) == ("model", "compared")
    assert first["rows"] == second["rows"]


def test_words_said_before_an_attack_are_those_of_the_rows_it_asks(
    command: Command, tmp_path: Path
) -> None:
    """The model says every sentence of FORGET, and of the one-word answer nothing."""
    short = {"question": FORGET[5]["question"], "answer": "Lima"}
    path = write(tmp_path / "f.jsonl", [short, *FORGET[:5]])
    assert command("attack", "--relearn", 1, "--relearn-steps", 1, "--rows", 4, forget=path) == 0
    (found,) = report(tmp_path / "out")["attacks"]
    before = {row["name"]: row["before"] for row in found["rows"]}
    whole = {"relearn forget": 1.0, "answer prefix": 1.0}  # without the short one
    assert {name: told["rouge"] for name, told in before.items()} == {
        name: whole.get(name, 3 / 4) for name in NAMES
    }
    assert all(told["rouge"] == told["exact_match"] for told in before.values())
