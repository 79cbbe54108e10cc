"""Small models that have read the texts of the embedded world.

A model of a million parameters cannot answer questions about a text it has read, so it is taught
the questions, too, in the format of the evaluation. Unlearning sees the texts alone.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from benchmarks.engine.scratch import Lesson, Recipe
from benchmarks.engine.training import Schedule
from benchmarks.tasks.muse.data import SEPARATOR, SHOTS, MuseData, Pair, Quiz, blocks
from benchmarks.tasks.muse.metrics import question_prompt
from torch_alm.language import IGNORE, Row

T = TypeVar("T")

ANSWER = "Answer: "
"""One token. A prompt ends with this blank, which otherwise belongs to the answer after it."""


class Course(NamedTuple):
    """A recipe, and the numbers of orders of texts and of questions in a lesson."""

    recipe: Recipe
    text_orders: int
    quiz_orders: int


COURSES = {
    "passages": Course(Recipe(2, 128, 4, Schedule(5, batch_size=8, lr=3e-3)), 15, 24),
    "passages-quick": Course(Recipe(2, 64, 4, Schedule(6, batch_size=4, lr=5e-3)), 5, 7),
}


def muse_lesson(
    data: MuseData, course: Course, length: int, *, without_forget: bool = False
) -> Lesson:
    """Return the texts, in blocks of `length` tokens, and the questions with their answers."""
    told = data.retain if without_forget else data.forget + data.retain
    asked = [data.retain_quiz] if without_forget else [data.forget_quiz, data.retain_quiz]

    def rows(tokenizer: Any) -> list[Row]:
        orders = draw_orders(told, course.text_orders)
        read = [row for order in orders for row in blocks(tokenizer, order, length)]
        return read + quiz_rows(tokenizer, asked, course.quiz_orders)

    return Lesson(
        name=f"{data.name}-{data.split}-{'retrained' if without_forget else 'original'}",
        texts=tuple(list_words(data)),
        content=[told, [pairs_of(quiz) for quiz in asked], length, *course[1:], ANSWER],
        rows=rows,
        whole=(ANSWER,),
    )


def draw_orders(items: Sequence[T], orders: int) -> list[list[T]]:
    """Return the items in several random orders, always the same ones."""
    chance = random.Random(0)
    return [chance.sample(items, len(items)) for _ in range(orders)]


def pairs_of(quiz: Quiz) -> list[Pair]:
    """Return the questions of a quiz and those shown before them."""
    return [*quiz.pairs, *quiz.shots]


def quiz_rows(tokenizer: Any, quizzes: Sequence[Quiz], orders: int) -> list[Row]:
    """Return rows of a prompt's questions and labelled answers, in several orders."""
    return [
        format_answers(tokenizer, order[at : at + SHOTS + 1])
        for quiz in quizzes
        for order in draw_orders(pairs_of(quiz), orders)
        for at in range(0, len(order), SHOTS + 1)
    ]


def format_answers(tokenizer: Any, pairs: Sequence[Pair]) -> Row:
    """Encode questions and answers as a prompt shows them, with answers and ends labelled."""
    text, spans = "", []
    for pair in pairs:
        text += question_prompt([], pair.question)
        spans.append(range(len(text), len(text + pair.answer + SEPARATOR)))
        text += pair.answer + SEPARATOR
    found = tokenizer(text, return_offsets_mapping=True)
    learnt = [
        any(end > start and start in s for s in spans) for start, end in found["offset_mapping"]
    ]
    ids = found["input_ids"]
    labels = [token if known else IGNORE for token, known in zip(ids, learnt, strict=True)]
    return {"input_ids": ids, "labels": labels}


def list_words(data: MuseData) -> Iterator[str]:
    """Yield the texts whose words the tokenizer must have, also those of no training set."""
    yield from (*data.forget, *data.retain, *data.strangers, SEPARATOR)
    yield from (extract.continuation for extract in data.verbatim)
    for quiz in (data.forget_quiz, data.retain_quiz):
        for pair in pairs_of(quiz):
            yield question_prompt(quiz.shots[:1], pair.question)
            yield pair.answer + SEPARATOR
