"""Tokens of questions and answers, asked in OpenUnlearning's words."""

from collections.abc import Iterable
from typing import Any

import jinja2

from benchmarks.tasks.tofu.data import Example
from torch_alm import language
from torch_alm.language import Format, Row

SYSTEM = "You are a helpful assistant."
DATE = {"date_string": "10 Apr 2025"}  # which the template of Llama 3 prints


def encode(tokenizer: Any, question: str, answer: str, max_length: int = 512) -> Row:
    """Tokens of a question and its answer, the answer and its end labelled.

    Base models are asked by `Question: ...` and `Answer:`, chat models by their template. The
    boundary before the answer is exact, which the official codes guess: see
    `torch_alm.language.encode`. A row has `max_length` tokens at most.
    """
    form = None
    if tokenizer.chat_template:
        form = Format(system=SYSTEM if takes_system(tokenizer) else None, variables=DATE)
    return language.encode(tokenizer, question, answer, max_length, form)


def encode_all(tokenizer: Any, examples: Iterable[Example]) -> list[Row]:
    """`encode` for the question and answer of each example."""
    return [encode(tokenizer, example.question, example.answer) for example in examples]


def takes_system(tokenizer: Any) -> bool:
    """Tell whether the chat template has a place for a system message.

    Gemma's refuses one. Llama-2-chat's has one that neither TOFU's code nor OpenUnlearning uses.
    """
    if "<<SYS>>" in str(tokenizer.chat_template):
        return False
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "?"}]
    try:
        return SYSTEM in tokenizer.apply_chat_template(messages, tokenize=False)
    except jinja2.TemplateError:
        return False
