"""From questions and answers to token batches: encode, collate, pair.

A batch is the mapping a transformers model takes; labels are -100 where nothing is learned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.tasks.tofu.data import Example
from torch_alm import language
from torch_alm.language import IGNORE, Batch, Format, Row, check_eos, collate, pad_id, pairs

__all__ = [
    "IGNORE",
    "Batch",
    "Row",
    "check_eos",
    "collate",
    "encode",
    "encode_all",
    "pad_id",
    "pairs",
]


# What OpenUnlearning's chat models were taught and are asked with; Llama 3's template has a date.
DATE = {"date_string": "10 Apr 2025"}
CHAT = Format(system="You are a helpful assistant.", variables=DATE)
WITHOUT_SYSTEM = Format(variables=DATE)  # for templates that refuse a system message


def encode(tokenizer: Any, question: str, answer: str, max_length: int = 512) -> Row:
    """`torch_alm.language.encode` in OpenUnlearning's format, base and chat models."""
    form = CHAT if tokenizer.chat_template else None
    try:
        return language.encode(tokenizer, question, answer, max_length, form)
    except ValueError as error:
        # jinja2's, by name: it comes with chat models only
        if "TemplateError" not in {kind.__name__ for kind in type(error.__cause__).__mro__}:
            raise
        return language.encode(tokenizer, question, answer, max_length, WITHOUT_SYSTEM)


def encode_all(tokenizer: Any, examples: Iterable[Example], max_length: int = 512) -> list[Row]:
    """`encode` for the question and answer of each example."""
    return [encode(tokenizer, e.question, e.answer, max_length) for e in examples]
