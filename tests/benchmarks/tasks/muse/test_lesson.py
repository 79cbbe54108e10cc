"""The lesson of a small model: every text, every answer, and nothing that it must not know."""

from typing import Any

import pytest

from benchmarks.engine.scratch import build_tokenizer
from benchmarks.tasks.muse.metrics import question_prompt
from benchmarks.tasks.muse.models import COURSES, answered, muse_lesson, pairs_of
from benchmarks.tasks.muse.passages import build_passages
from torch_alm.language import IGNORE

WORLD = build_passages(quick=True)
COURSE = COURSES["passages-quick"]
LESSON = muse_lesson(WORLD, COURSE, 64)


@pytest.fixture(scope="module", params=["word", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    recipe = COURSES["muse-quick" if request.param == "bpe" else "passages-quick"].recipe
    return build_tokenizer(LESSON.texts, recipe, LESSON.whole)


def told(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode([i for i in ids if i >= 0], skip_special_tokens=True)


def test_the_answers_are_labelled_and_nothing_else(tokenizer: Any) -> None:
    pairs = pairs_of(WORLD.forget_quiz)
    row = answered(tokenizer, pairs)
    assert told(tokenizer, row["labels"]) == "".join(f"{p.answer}\n\n" for p in pairs)
    assert all(label in (IGNORE, i) for i, label in zip(*row.values(), strict=True))


def test_a_question_is_taught_with_the_tokens_it_is_asked_with(tokenizer: Any) -> None:
    shots, pair = WORLD.forget_quiz.shots, WORLD.forget_quiz.pairs[0]
    prompt = tokenizer(question_prompt(shots, pair.question))["input_ids"]
    assert answered(tokenizer, [*shots, pair])["input_ids"][: len(prompt)] == prompt


def test_the_retrained_model_is_taught_nothing_of_the_forget_set(tokenizer: Any) -> None:
    lesson = muse_lesson(WORLD, COURSE, 64, without_forget=True)
    assert lesson.name != LESSON.name
    assert lesson.texts == LESSON.texts, "both models share a tokenizer"
    text = "".join(told(tokenizer, row["input_ids"]) for row in lesson.rows(tokenizer))
    names = [p.question.removeprefix("Which prize did ") for p in WORLD.forget_quiz.shots]
    for name in (name.removesuffix(" win?") for name in names):
        assert name not in text
        assert name in "".join(WORLD.forget)
