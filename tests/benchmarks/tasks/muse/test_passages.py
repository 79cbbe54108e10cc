"""The embedded world of MUSE: what its sets share, and what a small model is taught of it."""

from typing import Any

import pytest

from benchmarks.engine.scratch import build_tokenizer
from benchmarks.tasks.muse.data import MuseData
from benchmarks.tasks.muse.metrics import question_prompt
from benchmarks.tasks.muse.models import COURSES, format_answers, muse_lesson, pairs_of
from benchmarks.tasks.muse.passages import build_passages
from torch_alm.language import IGNORE

WORLD, _ = WORLDS = [build_passages(quick=True), build_passages()]
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
