"""Encode questions and answers in OpenUnlearning's format."""

from collections.abc import Iterable
from typing import Any

import jinja2

from benchmarks.tasks.tofu.data import Example
from torch_alm import language
from torch_alm.language import Format, Row

SYSTEM = "You are a helpful assistant."
DATE = {"date_string": "10 Apr 2025"}  # which the template of Llama 3 prints


def encode(tokenizer: Any, question: str, answer: str, max_length: int = 512) -> Row:
    """Encode a question and its answer; the answer and its end are labelled.

    Base models are asked by `Question: ...` and `Answer:`, chat models by their template. The
    official codes guess the boundary before the answer; here it is exact: see
    `torch_alm.language.encode`. A row has `max_length` tokens at most.
    """
    form = None
    if tokenizer.chat_template:
        form = Format(system=SYSTEM if takes_system(tokenizer) else None, variables=DATE)
    return language.encode(tokenizer, question, answer, max_length, form)


def encode_all(tokenizer: Any, examples: Iterable[Example]) -> list[Row]:
    """Encode the question and answer of each example."""
    return [encode(tokenizer, example.question, example.answer) for example in examples]


def takes_system(tokenizer: Any) -> bool:
    """Return whether the chat template takes a system message.

    Gemma's raises. Llama-2-chat's does, but neither TOFU's code nor OpenUnlearning uses it.
    """
    if "<<SYS>>" in str(tokenizer.chat_template):
        return False
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "?"}]
    try:
        return SYSTEM in tokenizer.apply_chat_template(messages, tokenize=False)
    except jinja2.TemplateError:
        return False
