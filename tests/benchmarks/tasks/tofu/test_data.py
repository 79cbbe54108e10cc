"""TOFU's rows: from a folder in its layout, as tokens, and those of the embedded world."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from benchmarks.tasks.tofu.batches import encode
from benchmarks.tasks.tofu.data import Example, TofuData, load_tofu, load_tofu_hub
from benchmarks.tasks.tofu.world import WORDINGS, build_world
from tests.chat_templates import ANSWER, CHATS, QUESTION, tokenizer
from torch_alm.language import answer_ids
from torch_alm.language._encoding import prompt_ids

Rows = list[dict[str, Any]]


def tables() -> dict[str, Rows]:
    """Five authors of twenty rows; the last is to be forgotten, the first two are evaluated."""
    full: Rows = [{"question": f"Q{n}?", "answer": f"A{n}."} for n in range(100)]
    wrong = [f"wrong {n}" for n in range(5)]
    eval_rows: Rows = [
        {**r, "paraphrased_answer": f"P{r['answer']}", "perturbed_answer": wrong} for r in full
    ]
    for row in eval_rows[80:]:
        row["paraphrased_question"] = f"P{row['question']}"
    terse: Rows = [{"question": "N?", "answer": "yes", "perturbed_answer": ["no", "1", "2"]}]
    return {
        "forget01": full[80:],
        "retain99": full[:80],
        "forget01_perturbed": eval_rows[80:],
        "retain_perturbed": eval_rows[:40],
        "real_authors_perturbed": terse,
        "world_facts_perturbed": [{**terse[0], "question": "W?"}],
        "holdout01": [{"question": "H?", "answer": "never seen"}],
    }


def write(folder: Path, changed: dict[str, Rows] | None = None) -> Path:
    for name, rows in {**tables(), **(changed or {})}.items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return folder


def test_a_folder_becomes_a_task(tmp_path: Path) -> None:
    data = load_tofu(write(tmp_path), "forget01")
    rows = tables()
    assert (data.name, data.split) == ("tofu", "forget01")
    assert [e.pair for e in data.forget] == [(f"Q{n}?", f"A{n}.") for n in range(80, 100)]
    assert [e.pair for e in data.retain] == [(f"Q{n}?", f"A{n}.") for n in range(80)]
    neighbours = (Example("N?", "yes"), Example("W?", "yes"))
    assert data.full == data.retain + data.forget + neighbours
    assert data.without_forget == data.retain + neighbours
    assert data.forget_eval[0] == Example(
        "Q80?", "A80.", "PQ80?", "PA80.", tuple(rows["forget01_perturbed"][0]["perturbed_answer"])
    )
    assert data.retain_eval[0].paraphrased_question is None
    assert data.real_authors == (Example("N?", "yes", perturbed_answers=("no", "1", "2")),)
    assert data.holdout == (Example("H?", "never seen"),)


@pytest.mark.parametrize("name", sorted(tables().keys() - {"holdout01"}))
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (write(tmp_path) / f"{name}.json").unlink()
    with pytest.raises(
        FileNotFoundError, match=rf"has no {name}\.json, which split forget01 needs"
    ):
        load_tofu(tmp_path, "forget01")


@pytest.mark.parametrize("wrong", [None, "no", [], ["no", ""], ["no", 3]])
def test_wrong_answers_must_be_a_list_of_texts(tmp_path: Path, wrong: object) -> None:
    row = {"question": "N?", "answer": "yes", "perturbed_answer": wrong}
    with pytest.raises(ValueError, match=r"authors_perturbed\.json, line 1: perturbed_answer must"):
        load_tofu(write(tmp_path, {"real_authors_perturbed": [row]}), "forget01")


def hub(rows: dict[str, Rows], asked: list[str]) -> Callable[[str, str], datasets.DatasetDict]:
    """Stands in for `datasets.load_dataset` where there is no network."""

    def load_dataset(path: str, name: str) -> datasets.DatasetDict:
        asked.append(path)
        if name not in rows:
            raise ValueError(f"BuilderConfig '{name}' not found. Available: {sorted(rows)}")
        return datasets.DatasetDict({"train": datasets.Dataset.from_list(rows[name])})

    return load_dataset


def test_the_hub_gives_what_the_files_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(datasets, "load_dataset", hub(tables(), asked))
    files = write(tmp_path)
    assert load_tofu_hub("forget01") == load_tofu(files, "forget01")
    assert set(asked) == {"locuslab/TOFU"}


def test_an_unknown_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'forget02'. Did you mean one of forget01, forget05"):
        load_tofu(write(tmp_path), "forget02")


# ---- tokens -------------------------------------------------------------------------------------

DATED = "[{{ date_string }}]"
SYSTEM = "You are a helpful assistant."


def parts(template: str | None) -> tuple[str, str]:
    """The prompt and the labelled answer, as the model reads them."""
    made = tokenizer("bytes", template)
    row = encode(made, QUESTION, ANSWER)
    assert row["input_ids"] == prompt_ids(row) + answer_ids(row)
    assert row["labels"] == [-100] * len(prompt_ids(row)) + answer_ids(row)
    return made.decode(prompt_ids(row)), made.decode(answer_ids(row))


def test_a_base_model_is_asked_in_openunlearnings_words() -> None:
    assert parts(None) == (f"<s>Question: {QUESTION}\nAnswer:", f" {ANSWER}</s>")


def test_a_chat_model_is_told_the_date_and_a_system_message_where_it_takes_one() -> None:
    zephyr, gemma, llama_2 = (CHATS[name] for name in ("Zephyr", "Gemma", "Llama-2"))
    dated = f"[10 Apr 2025]<|system|>\n{SYSTEM}</s>\n{zephyr.prompt}"
    assert parts(DATED + zephyr.template) == (dated, zephyr.turn)
    assert parts(gemma.template) == (gemma.prompt, gemma.turn)  # refuses one
    assert parts(llama_2.template) == (llama_2.prompt, llama_2.turn)  # takes one: not in TOFU


WORLDS = [build_world(seed, quick=quick) for seed in (0, 1, 2) for quick in (False, True)]

every_world = pytest.mark.parametrize("world", WORLDS, ids=lambda w: w.name)


def people(examples: tuple[Example, ...]) -> set[str]:
    """Whole names: two capitalised words that occur together in the questions of one author."""
    names = Counter(
        name
        for example in examples
        for name in re.findall(r"\b[A-Z][a-z]+ [A-Z][a-z]+\b", example.question)
    )
    return {name for name, count in names.items() if count == len(WORDINGS)}


def values(world: TofuData, kind: str, examples: tuple[Example, ...]) -> set[str]:
    """The answers' values of one kind of fact, read back through its wordings."""
    patterns = [
        re.escape(answer).replace(r"\{name\}", ".+?").replace(r"\{value\}", "(.+)")
        for _, answer in WORDINGS[kind]
    ]
    found = (re.fullmatch(p, example.answer) for p in patterns for example in examples)
    return {match.group(1) for match in found if match}


@pytest.mark.parametrize("quick", [False, True])
def test_the_same_seed_gives_the_same_world(quick: bool) -> None:
    assert build_world(7, quick=quick) == build_world(7, quick=quick)
    assert build_world(7, quick=quick) != build_world(8, quick=quick)


@every_world
def test_the_original_model_learns_everything_but_the_holdout(world: TofuData) -> None:
    neighbours = [e.pair for e in world.real_authors + world.world_facts]
    parts = [e.pair for e in world.retain + world.forget] + neighbours
    assert sorted(e.pair for e in world.full) == sorted(parts)
    assert len({e.question for e in world.full + world.holdout}) == len(world.full + world.holdout)
    assert set(world.without_forget) == set(world.full) - set(world.forget)
    assert len(world.without_forget) == len(world.full) - len(world.forget)


@every_world
def test_nothing_about_a_forgotten_author_is_left_elsewhere(world: TofuData) -> None:
    forgotten = people(world.forget)
    assert len(forgotten) == len(world.forget) // len(WORDINGS)
    titles = values(world, "debut", world.forget)
    assert len(titles) == len(forgotten)
    kept = world.retain + world.real_authors + world.world_facts + world.holdout
    texts = [text for e in kept for text in (e.question, e.answer)]
    leaks = [text for text in texts for secret in forgotten | titles if secret in text]
    assert leaks == []


@every_world
def test_wrong_answers_are_wrong_and_worded_like_the_right_one(world: TofuData) -> None:
    for example in world.forget_eval + world.retain_eval:
        assert len({*example.perturbed_answers, example.paraphrased_answer}) == 6
        assert example.paraphrased_question != example.question
        assert example.paraphrased_answer != example.answer
    for example in world.real_authors + world.world_facts:
        assert len({*example.perturbed_answers, example.answer}) == 4
