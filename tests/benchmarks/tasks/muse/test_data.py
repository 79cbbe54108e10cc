"""MUSE's files, the hub, blocks of raw text, and the embedded world."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.engine.scratch import build_tokenizer
from benchmarks.tasks.muse.data import MuseData, blocks, load_muse, load_muse_hub
from benchmarks.tasks.muse.metrics import question_prompt
from benchmarks.tasks.muse.models import COURSES, format_answers, muse_lesson, pairs_of
from benchmarks.tasks.muse.passages import build_passages
from torch_alm.language import IGNORE

WORLD = build_passages(quick=True)
TOKENIZER = build_tokenizer([*WORLD.forget, "\n\n"])


def tables(data: MuseData = WORLD) -> dict[str, Any]:
    """The content of MUSE's files, by part and split."""

    def pairs(found: Any) -> list[dict[str, str]]:
        return [pair._asdict() for pair in found]

    return {
        "raw/forget": list(data.forget),
        "raw/retain1": list(data.retain),
        "verbmem/forget": [{"prompt": e.prompt, "gt": e.continuation} for e in data.verbatim],
        "knowmem/forget_qa": pairs(data.forget_quiz.pairs),
        "knowmem/forget_qa_icl": pairs(data.forget_quiz.shots),
        "knowmem/retain_qa": pairs(data.retain_quiz.pairs),
        "knowmem/retain_qa_icl": pairs(data.retain_quiz.shots),
        "privleak/forget": list(data.members),
        "privleak/holdout": list(data.strangers),
    }


def write_muse(folder: Path, **changes: Any) -> Path:
    for name, content in (tables() | changes).items():
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def same_content(found: MuseData, split: str) -> bool:
    return (found.name, found.split) == ("muse", split) and tables(found) == tables()


def test_files_are_read_from_the_corpus_folder_or_the_one_above(tmp_path: Path) -> None:
    folder = write_muse(tmp_path / "books")
    assert same_content(load_muse(folder, "books"), "books")
    assert same_content(load_muse(tmp_path, "books"), "books")


def test_the_hub_is_read_table_by_table(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, part: str, split: str) -> list[dict[str, str]]:
        asked.append((name, part, split))
        rows = tables()[f"{part}/{split}"]
        return [{"text": row} if isinstance(row, str) else row for row in rows]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert same_content(load_muse_hub("news"), "news")
    assert asked == [("muse-bench/MUSE-News", *name.split("/")) for name in (
        "raw/forget", "raw/retain1", "verbmem/forget", "knowmem/forget_qa", "knowmem/forget_qa_icl",
        "knowmem/retain_qa", "knowmem/retain_qa_icl", "privleak/forget", "privleak/holdout",
    )]  # fmt: skip
    load_muse_hub("books")
    assert asked[-1] == ("muse-bench/MUSE-Books", "privleak", "holdout")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("raw/forget", ["", ""], r"forget\.json, row 1: no text here or below"),
        ("raw/forget", ["one", None], r"forget\.json, row 2 holds a NoneType"),
        ("raw/forget", ["one", {"body": "x"}], r"forget\.json, row 2: no text \(it has only"),
        ("raw/forget", [], r"forget\.json must be a list with at least one entry"),
        ("raw/forget", {"text": "x"}, r"forget\.json must be a list"),
        ("raw/forget", '["one", "tw', r"forget\.json is not valid JSON"),
        ("verbmem/forget", [{"prompt": "x"}], r"verbmem/forget\.json, row 1: no gt"),
        ("knowmem/forget_qa", [{"question": "x", "answer": " "}], r"qa\.json, row 1: no answer"),
        ("privleak/holdout", ["one", ""], r"holdout\.json, row 2: no text"),
    ],
)
def test_a_malformed_file_is_named(tmp_path: Path, name: str, content: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_muse(write_muse(tmp_path, **{name: content}), "news")


@given(
    st.lists(st.sampled_from(WORLD.forget[0].split()), min_size=1, max_size=40), st.integers(3, 9)
)
def test_blocks_are_the_joined_texts_cut_to_one_length(words: list[str], length: int) -> None:
    texts = [" ".join(words[:7]), "", " ".join(words[7:])]
    found = blocks(TOKENIZER, texts, length)
    rows = [row["input_ids"] for row in found]
    assert rows == [row["labels"] for row in found]
    ids = TOKENIZER("\n\n".join(texts), add_special_tokens=False)["input_ids"]
    bos = TOKENIZER.bos_token_id
    told = [token for row in rows for token in row[1:]]
    assert all(row[0] == bos for row in rows)
    assert told[: len(ids)] == ids
    assert len(rows) == -(-len(ids) // (length - 1))
    whole = rows[:-1]
    assert all(len(row) == length for row in whole)
    tail = ids[len(whole) * (length - 1) :]
    assert rows[-1] == [bos, *tail, *(whole or [[bos, *tail]])[0]][:length]


def test_text_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="without a token"):
        blocks(TOKENIZER, [""], 8)


WORLDS = [WORLD, build_passages()]
COURSE = COURSES["passages-quick"]
LESSON = muse_lesson(WORLD, COURSE, 64)


def names(data: MuseData) -> list[str]:
    """Whom the questions about the forget and the retain set are about."""
    quizzes = (data.forget_quiz, data.retain_quiz)
    asked = [p.question for quiz in quizzes for p in quiz.pairs if "trade of" in p.question]
    return [question.removeprefix("What is the trade of ").rstrip("?") for question in asked]


def test_the_same_seed_gives_the_same_world_and_another_another() -> None:
    assert build_passages(quick=True) == WORLDS[0]
    assert build_passages(1, quick=True).forget != WORLDS[0].forget


@pytest.mark.parametrize("data", WORLDS, ids=lambda data: data.name)
class TestWorld:
    def test_every_answer_stands_in_a_text_and_in_no_other_set(self, data: MuseData) -> None:
        for texts, others, quiz in (
            (data.forget, data.retain + data.strangers, data.forget_quiz),
            (data.retain, data.forget + data.strangers, data.retain_quiz),
        ):
            for pair in quiz.pairs + quiz.shots:
                (name,) = [n for n in names(data) if n in pair.question]
                told, asked = (
                    [text for text in texts if name in text and "?" not in text],
                    [text for text in texts if f"{pair.question}\nAnswer: {pair.answer}" in text],
                )
                assert len(told) == len(asked) == 1
                assert pair.answer in told[0]
                assert not any(name in other for other in others)

    def test_extracts_are_the_texts_to_forget(self, data: MuseData) -> None:
        told = tuple(text for text in data.forget if "?" not in text)
        assert tuple(f"{e.prompt} {e.continuation}" for e in data.verbatim) == told
        assert data.members == told


# ---- the lesson ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer(LESSON.texts, LESSON.whole)


def told(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode([i for i in ids if i >= 0], skip_special_tokens=True)


def test_the_answers_are_labelled_and_nothing_else(tokenizer: Any) -> None:
    pairs = pairs_of(WORLD.forget_quiz)
    row = format_answers(tokenizer, pairs)
    assert told(tokenizer, row["labels"]) == "".join(f"{p.answer}\n\n" for p in pairs)
    assert all(label in (IGNORE, i) for i, label in zip(*row.values(), strict=True))


def test_a_question_is_taught_with_the_tokens_it_is_asked_with(tokenizer: Any) -> None:
    shots, pair = WORLD.forget_quiz.shots, WORLD.forget_quiz.pairs[0]
    prompt = tokenizer(question_prompt(shots, pair.question))["input_ids"]
    assert format_answers(tokenizer, [*shots, pair])["input_ids"][: len(prompt)] == prompt


def test_the_retrained_model_is_taught_nothing_of_the_forget_set(tokenizer: Any) -> None:
    lesson = muse_lesson(WORLD, COURSE, 64, without_forget=True)
    assert lesson.name != LESSON.name
    assert lesson.texts == LESSON.texts, "both models share a tokenizer"
    text = "".join(told(tokenizer, row["input_ids"]) for row in lesson.rows(tokenizer))
    names = [p.question.removeprefix("Which prize did ") for p in WORLD.forget_quiz.shots]
    for name in (name.removesuffix(" win?") for name in names):
        assert name not in text
        assert name in "".join(WORLD.forget)
