"""`torch-alm attack`: what comes back, measured on the right rows, with the model as it was."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from tests.command.conftest import FORGET, NUMBERS, RETAIN, Command, report, write
from torch_alm.language import answer_ids
from torch_alm.unlearning.attacks import Returned, attacks_of, verdict_of
from torch_alm.unlearning.loading import Setup, encode_entries
from torch_alm.unlearning.measurement import Numbers
from torch_alm.unlearning.model import find_place
from torch_alm.unlearning.options import Options
from torch_alm.unlearning.rows import Entry

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
    assert "No paraphrases: no row has a paraphrased_question." in told
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
    assert [row["answer"] for row in rows["int8"]["answers"]] == [row["answer"] for row in FORGET]
    assert rows["int8"]["answers"][0].items() >= {
        "where": f"{tmp_path / 'forget.jsonl'}, line 1", "prompt": FORGET[0]["question"],
        "reference": FORGET[0]["answer"], "earlier": FORGET[0]["answer"],
        "answer": FORGET[0]["answer"], "loss": rows["int8"]["answers"][0]["loss"],
        "rouge": 1.0, "verbatim": True, "said": True,
    }.items()  # fmt: skip
    assert (folder / "model.safetensors").read_bytes() == saved
    assert "What comes back" in (tmp_path / "out" / "report.html").read_text()


def test_a_single_row_cannot_be_relearned_and_asked(
    command: Command, tmp_path: Path, capsys: Any
) -> None:
    options = ("--relearn", 2, "--relearn-steps", 1)
    assert command("attack", *options, forget=write(tmp_path / "f.jsonl", FORGET[:1])) == 0
    assert "No relearning on forget rows" in capsys.readouterr().out


def test_a_question_in_a_chat_may_have_a_paraphrase() -> None:
    before = [{"role": "system", "content": "Be short ."}]
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    entry = Entry("1", "a", "b", messages=(*before, *turns), paraphrase="c")
    assert entry.rephrase("c").messages == (*before, {"role": "user", "content": "c"}, turns[1])


def test_a_plain_text_goes_on_after_its_first_half_as_everywhere(
    command: Command, tmp_path: Path
) -> None:
    rows = [{"text": f"Question : {row['question']} Answer : {row['answer']}"} for row in FORGET]
    path = write(tmp_path / "f.jsonl", rows)
    assert command("evaluate", forget=path, output="a") == 0
    assert command("attack", "--relearn", 2, forget=path, output="b") == 0
    known = report(tmp_path / "a")["models"][0]["answers"]["forget"]
    found = {row["name"]: row for row in report(tmp_path / "b")["attacks"][0]["rows"]}
    assert [row["reference"] for row in found["int8"]["answers"]] == [r["reference"] for r in known]
    assert found["int8"]["before"]["rouge"] == fmean(row["rouge"] for row in known)
    least = min(len(row["reference"]) for row in found["int8"]["answers"])
    assert all(len(row["reference"]) < least for row in found["answer prefix"]["answers"])


@pytest.fixture
def loaded(model: Any, tokenizer: Any) -> Callable[..., Setup]:
    """The model with entries of rows to forget and to keep."""

    def made(rows: Sequence[Any], precision: str = "fp32", **more: Any) -> Setup:
        entries = [
            Entry(
                str(i), row["question"], row["answer"], paraphrase=row.get("paraphrased_question")
            )
            for i, row in enumerate(rows)
        ]
        both = {"forget": entries, "retain": [Entry("r", *row.values()) for row in RETAIN]}
        sets = {name: encode_entries(tokenizer, rows, 64, GIVEN) for name, rows in both.items()}
        return Setup(model, tokenizer, find_place("cpu", precision), replace(GIVEN, **more), sets)

    return made


GIVEN = Options(
    relearn=3, relearn_steps=5, relearn_lr=0.5, batch_size=2, seed=7, prefix=0.5, max_length=64
)


def test_what_the_attacker_has_is_what_was_asked_for(loaded: Callable[..., Setup]) -> None:
    given = loaded(FORGET, "bf16")
    attacks = {each.name: each for each in attacks_of(given, given.sets["forget"])}
    assert [*attacks] == NAMES
    for side, rows in {"forget": given.rows("forget"), "retain": given.rows("retain")}.items():
        learn: Any = attacks[f"relearn {side}"].context
        assert learn.args[1] == rows[:3]
        how = dict(learn.keywords)
        with how.pop("autocast")():
            assert torch.get_autocast_dtype("cpu") is torch.bfloat16
            assert torch.is_autocast_enabled("cpu")
        assert how == {"steps": 5, "lr": 0.5, "batch_size": 2, "seed": 7}
    whole = [answer_ids(row) for _, row in attacks["answer prefix"].asked]
    assert [answer_ids(row) for _, row in attacks["answer prefix"].then] == [
        ids[len(ids) - len(ids) // 2 :] for ids in whole
    ]


def test_copies_of_what_was_shown_are_not_asked_and_one_row_is_not_shown(
    loaded: Callable[..., Setup],
) -> None:
    def asked(rows: Sequence[Any], shown: int) -> list[str]:
        given = loaded(rows, relearn=shown)
        attacks = attacks_of(given, given.sets["forget"])
        found = next((each.asked for each in attacks if each.name == "relearn forget"), [])
        return [entry.where for entry, _ in found]

    assert asked([FORGET[0], FORGET[1], FORGET[0], FORGET[2]], 1) == ["1", "3"]
    assert asked([FORGET[0], FORGET[0]], 1) == []
    assert asked(FORGET, 9) == ["5"]


def test_paraphrases_of_some_rows_stand_beside_those(loaded: Callable[..., Setup]) -> None:
    rows = [FORGET[0], {**FORGET[1], "paraphrased_question": "B1 ?"}, FORGET[2]]
    given = loaded(rows)
    attacks = attacks_of(given, given.sets["forget"])
    (found,) = (each for each in attacks if each.name == "paraphrase")
    assert [entry.where for entry, _ in found.asked] == ["1"]
    assert [entry.prompt for entry, _ in found.then] == ["B1 ?"]


def test_rows_that_are_left_out_are_told(command: Command, tmp_path: Path, capsys: Any) -> None:
    words = ("--relearn", 0, "--rows", 2, "--max-length", 14)
    assert command("attack", *words) == 0
    told = f"{2 * len(FORGET) - 2} of {2 * len(FORGET)} forget rows were left out: 2 are asked."
    assert told in " ".join(capsys.readouterr().out.split())
    found = report(tmp_path / "out")
    assert told in found["notes"]
    assert {row["before"]["rows"] for row in found["attacks"][0]["rows"]} == {2}


def one(name: str, *sides: tuple[float, ...]) -> Returned:
    def numbers(rouge: float, loss: float, said: float = 0.0) -> Numbers:
        return replace(NUMBERS, rows=20.0, rouge=rouge, rouge_error=0.02, loss=loss, said=said)

    return Returned(name, *(numbers(*side) for side in sides), [])


WEAK, STRONG = one("int8", (0.1, 7.0), (0.12, 6.9)), one("relearn", (0.1, 7.0), (0.5, 3.0))
UNSEEN = one("relearn", (0.1, 7.0), (0.2, 6.5))
LOSS = one("a", (0.1, 7.5), (0.2, 2.8)), one("a", (0.1, 7.5), (0.2, 6.6))
LOWER = one("a", (0.1, 4.0), (0.1, 3.5)), one("a", (0.1, 7.5), (0.1, 7.0))
KNOWN = one("a", (1.0, 0.1, 1.0), (1.0, 0.1, 1.0))
FAR = one("a", (0, 9.3), (0, 3.2)), one("a", (0, 3.1), (0, 2.3))
FEW = replace(KNOWN, before=replace(KNOWN.before, rows=2.0))
SAID = one("a", (0.1, 7.0), (0.12, 7.0, 0.05)), one("a", (0.1, 7.0), (0.1, 7.0))


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        ([WEAK], None, ("nothing comes back", [])),
        ([WEAK, STRONG], None, ("not compared", ["relearn"])),
        ([WEAK, STRONG], [WEAK, STRONG], ("nothing comes back", [])),
        ([WEAK, STRONG], [WEAK, UNSEEN], ("comes back", ["relearn"])),
        # a loss that fell is knowledge close to being said, though no more words are
        ([LOSS[0]], [LOSS[1]], ("comes back", ["a"])),
        # a lower loss from the start is not
        ([LOWER[0]], [LOWER[1]], ("nothing comes back", [])),
        # one answer of twenty that is said again does not show in the mean
        ([SAID[0]], [SAID[1]], ("comes back", ["a"])),
        ([], None, ("not attacked", [])),
        # the wrong model: what is to be forgotten is said as it stands
        ([KNOWN], None, ("not forgotten", [])),
        ([KNOWN], [SAID[1]], ("not forgotten", [])),
        # nor has the other one never seen it
        ([KNOWN], [KNOWN], ("not compared", [])),
        # the few rows that relearning leaves are not all rows
        ([FEW, WEAK], None, ("nothing comes back", [])),
        # from far above: it ends where the other knows more
        ([FAR[0]], [FAR[1]], ("nothing comes back", [])),
    ],
)
def test_what_comes_back_is_what_a_model_that_never_saw_it_does_not_have(
    own: Any, other: Any, expected: tuple[str, list[str]]
) -> None:
    found = verdict_of(own, other or ())
    assert (found["outcome"], found["missed"], found["code"]) == (*expected, 0)
    assert all(name in found["text"] for name in expected[1])
    assert ("Not compared" in found["text"]) == (found["outcome"] == "not compared")


def test_a_second_model_stands_beside(command: Command, tmp_path: Path, folder: Path) -> None:
    assert command("attack", "--relearn", 0, "--compare", folder) == 0
    found = report(tmp_path / "out")
    assert found["models"] == []
    first, second = found["attacks"]
    assert (first["name"], second["name"]) == ("model", "compared")
    assert first["rows"] == second["rows"]
    assert found["verdict"]["outcome"] == "not compared", "the same model has seen the rows"
    shown = (tmp_path / "out" / "report.html").read_text()
    assert "words, compared" in shown and "Came back most" in shown


def test_a_part_of_an_answer_stands_beside_what_was_said_of_it_or_nothing(
    command: Command, tmp_path: Path
) -> None:
    """Another prompt, that of a paraphrase, moves the cuts of a long answer."""
    long = {"question": FORGET[0]["question"], "answer": " ".join(row["answer"] for row in FORGET)}
    row = {**long, "paraphrased_question": f"Where {long['question']} live live live"}
    path = write(tmp_path / "f.jsonl", [row])
    assert command("attack", "--relearn", 0, "--max-length", 18, forget=path) == 0
    (found,) = report(tmp_path / "out")["attacks"]
    rows = {row["name"]: row["answers"] for row in found["rows"]}
    own = {answer["reference"]: answer["earlier"] for answer in rows["int8"]}
    assert len({answer["where"] for answer in rows["int8"]}) == 1 < len({*own.values()})
    assert all(answer["earlier"] == answer["answer"] for answer in rows["int8"]), "as it is rounded"
    assert len(rows["paraphrase"]) > 1
    for answer in rows["paraphrase"]:
        assert answer["earlier"] == own.get(answer["reference"], "")


def test_a_model_without_linear_layers_is_attacked_by_all_else(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("torch_alm.unlearning.attacks.linear_weights", lambda model: [])
    assert command("attack", "--relearn", 2, "--relearn-steps", 1) == 0
    (found,) = report(tmp_path / "out")["attacks"]
    assert [row["name"] for row in found["rows"]] == [n for n in NAMES if "int" not in n]
    assert "no linear layer that could be rounded" in capsys.readouterr().out


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
