"""From questions and answers to token batches: encode, collate, pair.

A batch is the mapping a transformers model takes; labels are -100 where nothing is learned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.tasks.tofu import conventions
from benchmarks.tasks.tofu.conventions import DATE, SYSTEM
from benchmarks.tasks.tofu.data import Example
from torch_alm import language
from torch_alm.language import Format, Row

# What OpenUnlearning's chat models were taught and are asked with.
CHAT = Format(system=SYSTEM, variables=DATE)
WITHOUT_SYSTEM = Format(variables=DATE)  # for templates that refuse a system message


def encode(
    tokenizer: Any,
    question: str,
    answer: str,
    max_length: int = 512,
    convention: str = "ours",
) -> Row:
    """Tokens of a question and its answer, the answer and its end labelled.

    Args:
        tokenizer: of a base or chat model, with an EOS token.
        question: the question.
        answer: the answer.
        max_length: most tokens of a row.
        convention: `"ours"`: OpenUnlearning's words with an exact boundary before the answer
            (`torch_alm.language.encode`); `"openunlearning"` or `"tofu"`: to the token what their
            data sets give, see `conventions`.
    """
    return CONVENTIONS[convention](tokenizer, question, answer, max_length)


def _ours(tokenizer: Any, question: str, answer: str, max_length: int) -> Row:
    """`torch_alm.language.encode` in OpenUnlearning's format, base and chat models."""
    form = None
    if tokenizer.chat_template:
        form = CHAT if conventions.takes_system(tokenizer) else WITHOUT_SYSTEM
    return language.encode(tokenizer, question, answer, max_length, form)


CONVENTIONS: dict[str, Callable[[Any, str, str, int], Row]] = {
    "ours": _ours,
    "openunlearning": conventions.openunlearning,
    "tofu": conventions.tofu,
}


def encode_all(tokenizer: Any, examples: Iterable[Example], convention: str = "ours") -> list[Row]:
    """`encode` for the question and answer of each example."""
    return [encode(tokenizer, e.question, e.answer, convention=convention) for e in examples]
