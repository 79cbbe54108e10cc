"""No verdict is green while the saved model says what it was to forget, or little else."""

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

from tests.command.asking import said
from tests.command.conftest import (
    FINISHED,
    FORGET,
    RETAIN,
    Command,
    Refused,
    learn,
    make_model,
    report,
    write,
)
from torch_alm.command.files import read_entries
from torch_alm.language import answer_ids, encode
from torch_alm.language._generation import Reading
from torch_alm.unlearning.asking import SPARE_TOKENS, read_fully
from torch_alm.unlearning.asking import compare_answer as how_much
from torch_alm.unlearning.loading import Setup, encode_entries
from torch_alm.unlearning.model import find_place
from torch_alm.unlearning.options import Options

IDLE = ("--lr", "1e-8", "--epochs", 1)
ODD = [{"question": f"Where does C{i} live ?", "answer": "York B7 B5 York Oslo"} for i in range(5)]


def test_rows_beyond_those_that_are_shown_and_single_answers_count(
    command: Command, tmp_path: Path
) -> None:
    """The mean of eleven rows is far above the level, and six of them are known by heart."""
    path = write(tmp_path / "mixed.jsonl", [*ODD, *FORGET])
    assert command("unlearn", "--alpha", 1, "--rows", 2, *IDLE, forget=path) == 3
    assert said(tmp_path / "out" / "model", FORGET) == 6
    found = report(tmp_path / "out")
    assert found["models"][1]["numbers"]["forget"]["telling_loss"] > 2
    assert found["verdict"]["missed"][0] == "said"
    assert "6 of 11 answers are still said, 6 word for word" in found["verdict"]["text"]


def test_a_model_that_lost_the_rest_is_not_plainly_green(command: Command, tmp_path: Path) -> None:
    steps = ("--lr", "3e-2", "--batch-size", 3, "--epochs", 8)
    assert command("unlearn", *steps, "--alpha", 3) == 4
    model = tmp_path / "out" / "model"
    assert said(model, FORGET) == 0
    kept = said(model, RETAIN)
    assert kept < 6
    found = report(tmp_path / "out")["verdict"]
    assert found["outcome"] == "met at a cost"


def test_the_saved_model_is_asked_and_not_the_one_in_memory(
    command: Command, tmp_path: Path, model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save that writes other weights than it was given, as a wrapper of the model may."""
    saved = LlamaForCausalLM.save_pretrained
    monkeypatch.setattr(
        LlamaForCausalLM, "save_pretrained", lambda _, path, **more: saved(model, path, **more)
    )
    steps = ("--lr", "5e-3", "--batch-size", 3, "--alpha", 2, "--epochs", 25)
    assert command("unlearn", *steps) == 3
    assert report(tmp_path / "out")["verdict"]["missed"] == ["level", "said", "words"]
    seen = [row["forget"] for row in report(tmp_path / "out")["trace"]]
    assert max(seen) > 1.9, "the one in memory forgot"
    assert said(tmp_path / "out" / "model", FORGET) == 6


def test_an_answer_that_goes_on_after_its_end_is_said(
    command: Command, tmp_path: Path, folder: Path, tokenizer: Any
) -> None:
    """Without an end of sequence no answer matches exactly, and all of them are said."""
    endless = make_model(len(tokenizer))
    rows = [encode(tokenizer, row["question"], f"{row['answer']} Bonn York") for row in FORGET]
    kept = [encode(tokenizer, **row) for row in RETAIN]
    learn(endless, [*rows, *kept], 80)
    path = tmp_path / "endless"
    shutil.copytree(folder, path)
    endless.eval().save_pretrained(path)
    assert said(path, FORGET) == 6
    assert command("unlearn", "--alpha", 0.1, *IDLE, model=path) == 3
    found = report(tmp_path / "out")
    assert found["models"][1]["numbers"]["forget"]["exact_match"] == 0
    assert found["verdict"]["missed"] == ["level", "said", "words"]


@pytest.mark.parametrize(
    ("reference", "text", "share", "verbatim", "is_said"),
    [
        ("A0 lives in Rome .", "A0 lives in Rome .", 1.0, True, True),
        ("A0 lives in Rome .", "Yes : a0  LIVES in\nRome . And", 1.0, True, True),
        ("A0 lives in Rome .", "A0 lives , so in Rome", 1.0, False, True),
        ("A0 lives in Rome .", "A0 lives in Bonn .", 0.75, False, False),
        ("Rome", "Romeo", 0.0, False, False),
        ("Київ", "Київ", 1.0, True, True),
        ("Він живе в місті", "Він жив в місті", 0.75, False, False),
        ("他住在罗马", "他住在巴黎", 0.6, False, False),
        ("他住在罗马", "是他住在罗马", 1.0, True, True),
        ("753159", "7531590 7531590", 1.0, True, True),
        ("🍎💧", "so 🍎💧🍎", 1.0, True, True),
        ("sk-9f", "sk-9f", 1.0, True, True),
        ("marlow", "marlows", 1.0, True, True),
        ("four", "fourteen", 0.0, False, False),
        ("197", "1975", 0.0, False, False),
        (".", "Rome .", 1.0, True, True),
        ("Lima", "LimaLimaLima", 1.0, True, True),
        ("Lima", "LimaLimaNice", 1.0, True, True),
        ("Lima", "LimaNice", 0.0, False, False),
        ("Köln", "Köln是_Köln_", 1.0, True, True),
        ("Köln", "是Köln2020", 1.0, True, True),
        ("Mu\u0308ller", "It is M\u00fcller", 1.0, True, True),
        ("123", "\uff11\uff12\uff13", 1.0, True, True),
        ("&&", "with `&&`.", 1.0, True, True),
        ("in Rome.", "he is in Rome", 1.0, True, True),
        ("5 years", "25 years", 0.5, False, False),
        ("1 May", "21 May", 0.5, False, False),
        ("1234", "12345", 0.0, False, False),
        ("7", "7,000", 1.0, False, False),
        ("1,000", "It cost 1000 euros .", 1.0, True, True),
        ("12500", "12 500 people", 1.0, True, True),
        ("1.250.000 inhabitants", "of 1,250,000 inhabitants", 1.0, True, True),
        ("345", "in rooms 12 345", 1.0, True, True),
        ("1,000", "21,000", 0.5, False, False),
        ("1000", "10,00", 0.0, False, False),
        ("A+", "A-", 1.0, False, False),
        ("כן", "לכן", 0.0, False, False),
    ],
)
def test_what_is_said_is_told_by_its_words_in_any_script(
    reference: str, text: str, share: float, verbatim: bool, is_said: bool
) -> None:
    found = how_much(reference, Reading(1.0, False, text))
    assert found == (pytest.approx(share), verbatim, is_said)
    exact = how_much(reference, Reading(1.0, True, None))
    assert exact.verbatim, "what greedy decoding reproduces is said"


def test_an_answer_that_begins_late_is_said(
    command: Command, tmp_path: Path, folder: Path, tokenizer: Any, monkeypatch: Any
) -> None:
    """After ten other words, which the first asking does not reach."""
    monkeypatch.setattr("torch_alm.unlearning.asking.TWICE", (4, SPARE_TOKENS))
    slow = make_model(len(tokenizer))
    lead = " ".join([*(f"B{i}" for i in range(8)), "C0", "C1"])
    rows = [encode(tokenizer, row["question"], f"{lead} {row['answer']}") for row in FORGET]
    learn(slow, [*rows, *(encode(tokenizer, **row) for row in RETAIN)], 100)
    path = tmp_path / "slow"
    shutil.copytree(folder, path)
    slow.eval().save_pretrained(path)
    assert command("evaluate", model=path) == 0
    assert report(tmp_path / "out")["models"][0]["numbers"]["forget"]["said"] == 1


def test_a_certificate_does_not_hold_for_want_of_an_end(command: Command, tmp_path: Path) -> None:
    """Rows without the full stop that the model was taught, as of a base model that runs on."""
    short = [{**row, "answer": row["answer"].removesuffix(" .")} for row in FORGET]
    path = write(tmp_path / "f.jsonl", short)
    assert command("evaluate", forget=path) == 0
    before = report(tmp_path / "out")["models"][0]["numbers"]["forget"]
    assert (before["said"], before["exact_match"], before["certificate"]) == (1, 0, 0)


def test_an_answer_longer_than_a_row_is_measured_and_trained_on_to_its_end(
    command: Command, tmp_path: Path, tokenizer: Any
) -> None:
    assert command("unlearn", "--max-length", 14, *IDLE) == 3
    found = report(tmp_path / "out")
    assert found["models"][1]["numbers"]["forget"]["rows"] == 12
    assert found["models"][1]["numbers"]["forget"]["unmeasured"] == 0
    parts = found["models"][1]["answers"]["forget"]
    told = [f"{a['reference']} {b['reference']}" for a, b in pairwise(parts)][::2]
    assert told == [row["answer"] for row in FORGET]
    assert all(row["said"] for row in parts)
    assert found["models"][1]["numbers"]["forget"]["rouge"] == 1, "a full stop is said, too"
    assert len(found["trace"]) == 2, "steps of eight rows"


def test_a_model_that_can_tell_few_places_is_asked_within_them(
    command: Command, tmp_path: Path, tokenizer: Any, folder: Path
) -> None:
    """GPT-2 has an embedding for each place, and none beyond."""
    torch.manual_seed(0)
    size = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 16}
    config = GPT2Config(vocab_size=len(tokenizer), bos_token_id=2, eos_token_id=2, **size)
    path = tmp_path / "gpt2"
    shutil.copytree(folder, path)
    GPT2LMHeadModel(config).save_pretrained(path)
    long = [{**row, "answer": f"{row['answer']} {row['answer']}"} for row in FORGET]
    rows = write(tmp_path / "long.jsonl", [*FORGET, *long])
    assert command("evaluate", model=path, forget=rows) == 0
    found = report(tmp_path / "out")["models"][0]["numbers"]["forget"]
    assert (found["rows"], found["unmeasured"]) == (18, 0)


def test_every_answer_may_be_said_to_its_end(
    model: Any, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of one batch with prompts and answers of many lengths."""
    words = " ".join(row["answer"] for row in FORGET)
    rows = [
        {"question": " ".join(words.split()[:n]), "answer": " ".join(words.split()[:m])}
        for n, m in ((30, 2), (2, 40), (4, 4), (20, 20))
    ]
    entries = read_entries(write(tmp_path / "x.jsonl", rows), "forget")
    encoded = encode_entries(tokenizer, entries, 64, Options())
    seen: list[tuple[int, int]] = []
    generate = model.generate

    def noted(**given: Any) -> Any:
        seen.append((given["input_ids"].shape[1], given["generation_config"].max_new_tokens))
        return generate(**given)

    model.generate = noted
    try:
        here = find_place("cpu", "fp32")
        read_fully(Setup(model, tokenizer, here, Options(), {}), [encoded], spare=(SPARE_TOKENS,))
    finally:
        del model.generate
    assert len(seen) == 2, "the longest prompt and the longest answers do not go together"
    assert all(prompt + answer <= 64 for prompt, answer in seen)
    longest = max(len(answer_ids(row)) for _, row in encoded)
    assert max(answer for _, answer in seen) >= longest


def test_one_line_of_json_and_nothing_else_for_scripts(
    command: Command, tmp_path: Path, capsys: Any, folder: Path, files: dict[str, Path]
) -> None:
    def line(run: Callable[[], int], code: int) -> Any:
        capsys.readouterr()
        assert run() == code
        told = capsys.readouterr().out
        assert told.count("\n") == 1
        return json.loads(told)

    steps = ("--alpha", 3, *IDLE, "--json")
    found = line(lambda: command("unlearn", *steps, output="a"), 3)
    whole = report(tmp_path / "a")
    assert found["outcome"] == "not met"
    assert found["code"] == 3
    assert (found["text"], found["cost"]) == (whole["verdict"]["text"], whole["verdict"]["cost"])
    assert found["numbers"] == {each["name"]: each["numbers"] for each in whole["models"]}
    assert found["output"] == str(tmp_path / "a")
    assert "Rome" not in json.dumps(found), "nobody's text"
    assert line(lambda: command("evaluate", "--json", output="b"), 0)["outcome"] == "done"
    found = line(lambda: command("attack", "--relearn", 0, "--json", output="c"), 0)
    assert {row["name"] for row in found["attacks"]["model"]} >= {"int8", "int4"}
    found = line(lambda: command("unlearn", "--json", output="a"), 2)
    assert (found["outcome"], found["code"]) == ("refused", 2)
    assert "a run of other settings: " in found["text"]


def test_a_level_that_only_a_wrong_answer_can_reach_is_told(
    command: Command, tmp_path: Path, capsys: Any, unlearned: Path
) -> None:
    assert command("unlearn", "--alpha", 20, *IDLE, "--quiet") in FINISHED
    told = " ".join(capsys.readouterr().out.split())
    assert "is above 3.76" in told, "quiet tells results"
    beyond, ended = report(tmp_path / "out")["notes"]
    assert beyond in told and "is above 3.76" not in ended
    assert len(report(unlearned)["notes"]) == 1


def test_a_level_from_a_single_row_is_refused(refused: Refused, tmp_path: Path) -> None:
    one = write(tmp_path / "one.jsonl", ODD[:1])
    assert "--holdout has a single row" in refused("unlearn", holdout=one)


def test_unseen_rows_that_the_model_says_are_refused(refused: Refused, tmp_path: Path) -> None:
    seen = write(tmp_path / "seen.jsonl", RETAIN[:3])
    kept = write(tmp_path / "kept.jsonl", RETAIN[3:])
    assert "so it has seen them" in refused("unlearn", holdout=seen, retain=kept)


def test_unseen_rows_say_the_level_and_how_many_words_may_be_said(
    command: Command, tmp_path: Path, files: dict[str, Path]
) -> None:
    assert command("unlearn", *IDLE, holdout=files["holdout"]) == 3
    found = report(tmp_path / "out")
    unseen = found["models"][0]["numbers"]["holdout"]
    level = max(0.5, unseen["words"] + 2 * unseen["words_error"])
    assert found["goal"]["words"] == pytest.approx(level)
    assert found["goal"]["alpha"] == pytest.approx(unseen["telling_loss"], rel=1e-5)
    assert set(found["models"][0]["answers"]) == {"forget", "retain", "probe"}
