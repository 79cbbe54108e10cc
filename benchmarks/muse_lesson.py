"""What a small model made from scratch is taught before it unlearns from MUSE.

A model of a million parameters cannot answer questions about a text it has read. So it is taught
the questions too, in the form in which they are asked; unlearning sees the texts alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.data.batches import IGNORE, Row
from benchmarks.data.muse import SEPARATOR, SHOTS, MuseData, Pair, Quiz, blocks
from benchmarks.metrics.muse import question_prompt
from benchmarks.scratch import Lesson, Recipe
from benchmarks.training import Schedule

ORDERS = 15
"""Orders in which texts and questions follow each other: each is learnt by itself."""

ANSWER = "Answer: "
"""One token. A prompt ends with this blank, which otherwise belongs to the answer after it."""

RECIPES = {
    "passages": Recipe("word", 0, 2, 128, 4, Schedule(epochs=5, batch_size=8, lr=3e-3)),
    "passages-quick": Recipe("word", 0, 2, 64, 4, Schedule(epochs=8, batch_size=4, lr=5e-3)),
    "muse": Recipe("bpe", 4000, 2, 256, 4, Schedule(20, batch_size=2, lr=1e-3, bfloat16=True)),
    "muse-quick": Recipe("bpe", 1000, 2, 64, 4, Schedule(epochs=1, batch_size=4, lr=5e-3)),
}


def muse_lesson(data: MuseData, length: int, *, without_forget: bool = False) -> Lesson:
    """The texts, in blocks of `length` tokens, and the questions with their answers."""
    told = data.retain if without_forget else data.forget + data.retain
    asked = [data.retain_quiz] if without_forget else [data.forget_quiz, data.retain_quiz]

    def rows(tokenizer: Any) -> list[Row]:
        return text_rows(tokenizer, told, length) + quiz_rows(tokenizer, asked)

    return Lesson(
        name=f"{data.name}-{data.split}-{'retrained' if without_forget else 'original'}",
        texts=tuple(spelled(data)),
        content=[told, [pairs_of(quiz) for quiz in asked], length, ORDERS, ANSWER],
        rows=rows,
        whole=(ANSWER,),
    )


def text_rows(tokenizer: Any, texts: Sequence[str], length: int, seed: int = 0) -> list[Row]:
    """Blocks of the texts in several orders."""
    chance = random.Random(seed)
    orders = (chance.sample(texts, len(texts)) for _ in range(ORDERS))
    return [row for order in orders for row in blocks(tokenizer, order, length)]


def pairs_of(quiz: Quiz) -> list[Pair]:
    """The questions of a quiz and those shown before them."""
    return [*quiz.pairs, *quiz.shots]


def quiz_rows(tokenizer: Any, quizzes: Sequence[Quiz], seed: int = 0) -> list[Row]:
    """Rows of a prompt's questions with their answers, which are labelled, in several orders."""
    chance = random.Random(seed)
    rows = []
    for pairs in map(pairs_of, quizzes):
        for order in (chance.sample(pairs, len(pairs)) for _ in range(ORDERS)):
            starts = range(0, len(order), SHOTS + 1)
            rows += [answered(tokenizer, order[at : at + SHOTS + 1]) for at in starts]
    return rows


def answered(tokenizer: Any, pairs: Sequence[Pair]) -> Row:
    """Questions and answers as a prompt shows them; each answer and its end are labelled."""
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


def spelled(data: MuseData) -> Iterator[str]:
    """All that a tokenizer of words has to know, that of texts nobody is trained on included."""
    yield from (*data.forget, *data.retain, *data.strangers, SEPARATOR)
    yield from (extract.continuation for extract in data.verbatim)
    for quiz in (data.forget_quiz, data.retain_quiz):
        for pair in pairs_of(quiz):
            yield question_prompt(quiz.shots[:1], pair.question)
            yield pair.answer + SEPARATOR
