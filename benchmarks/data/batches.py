"""From questions and answers to token batches: encode, collate, pair.

A batch is the mapping a transformers model takes; labels are -100 where nothing is learned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from jinja2 import TemplateError
from torch import Tensor

from benchmarks.data.tofu import Example

IGNORE = -100
DATE_STRING = "10 Apr 2025"  # Llama 3's template prints a date; this one keeps prompts the same
SYSTEM_MESSAGE = "You are a helpful assistant."

Row = dict[str, list[int]]
Batch = dict[str, Tensor]
T = TypeVar("T")


def encode(tokenizer: Any, question: str, answer: str, max_length: int = 512) -> Row:
    r"""Tokens of a prompt and its answer; the answer and the token that ends it are labelled.

    Models without a chat template get `Question: {q}\nAnswer: {a}` and EOS; chat models get their
    own template with a system message, a fixed date, and the token with which the template closes
    the assistant's turn (EOS, for most).

    The boundary is exact: the prompt has the tokens it has on its own, so that training and
    generation see the same ids. The answer has its tokens of the whole text where the tokenizer
    does not merge across the boundary, and otherwise the tokens it has on its own. The blank after
    `Answer:` belongs to the answer.

    Args:
        tokenizer: a tokenizer of transformers, with an EOS token.
        question: the question.
        answer: the answer; outer white space is dropped.
        max_length: most tokens of a row; a longer answer loses its tail (and has no EOS then).

    Raises:
        ValueError: no EOS token, or no room for an answer token; names the question.
    """
    check_eos(tokenizer)
    prompt = _prompt(tokenizer, question)
    answer = answer.strip() if tokenizer.chat_template else f" {answer.strip()}"
    head, whole = _ids(tokenizer, prompt), _ids(tokenizer, prompt + answer)
    merged = whole[: len(head)] != head
    tail = _ids(tokenizer, answer, special=False) if merged else whole[len(head) :]
    if not tail or not answer.strip():
        raise ValueError(_no_answer(question, "the answer has no tokens"))
    if len(head) >= max_length:
        raise ValueError(
            _no_answer(question, f"the prompt takes {len(head)} of {max_length} tokens")
        )
    row = [*head, *tail, _end_of_turn(tokenizer)][:max_length]
    return {"input_ids": row, "labels": [IGNORE] * len(head) + row[len(head) :]}


def encode_all(tokenizer: Any, examples: Iterable[Example], max_length: int = 512) -> list[Row]:
    """`encode` for the question and answer of each example."""
    return [encode(tokenizer, e.question, e.answer, max_length) for e in examples]


def collate(rows: Sequence[Row], pad_id: int) -> Batch:
    """Stacks rows, padded on the right: input_ids, attention_mask, labels, each (rows, longest).

    The mask comes from the lengths: where the pad token is EOS, the EOS of an answer still counts.
    """
    longest = max(len(row["input_ids"]) for row in rows)

    def stack(values: Iterable[list[int]], fill: int) -> Tensor:
        return torch.tensor([[*value, *[fill] * (longest - len(value))] for value in values])

    return {
        "input_ids": stack((row["input_ids"] for row in rows), pad_id),
        "attention_mask": stack(([1] * len(row["input_ids"]) for row in rows), 0),
        "labels": stack((row["labels"] for row in rows), IGNORE),
    }


def pairs(
    forget: Sequence[T], retain: Sequence[T], batch_size: int, epochs: int, seed: int
) -> Iterator[tuple[list[T], list[T]]]:
    """Pairs of lists to collate, (retain, forget), of at most `batch_size` each.

    Every epoch visits each forget item once, in a new order; with each one comes a retain item
    drawn uniformly with replacement. The last pair of an epoch may be shorter. The same seed gives
    the same pairs.

    Raises:
        ValueError: nothing to forget, or nothing to retain.
    """
    for name, items in (("forget", forget), ("retain", retain)):
        if not items:
            raise ValueError(
                f"pairs: the {name} set is empty; no step could be taken. Was it loaded?"
            )
    random = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(len(forget), generator=random)
        for chosen in order.split(batch_size):
            drawn = torch.randint(len(retain), chosen.shape, generator=random)
            yield [retain[i] for i in drawn.tolist()], [forget[i] for i in chosen.tolist()]


def pad_id(tokenizer: Any) -> int:
    """The pad token's id, or EOS where there is none (Llama)."""
    check_eos(tokenizer)
    return tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id


def check_eos(tokenizer: Any) -> None:
    """Raises ValueError for a tokenizer without EOS."""
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"{type(tokenizer).__name__} {tokenizer.name_or_path!r} has no EOS token: "
            "answers would never end. Did you mean to set tokenizer.eos_token?"
        )


def _prompt(tokenizer: Any, question: str) -> str:
    if tokenizer.chat_template:
        return _conversation(tokenizer, question)
    return f"Question: {question.strip()}\nAnswer:"


def _conversation(tokenizer: Any, question: str, answer: str | None = None) -> str:
    system = [{"role": "system", "content": SYSTEM_MESSAGE}]
    turns = [{"role": "user", "content": question}]
    turns += [{"role": "assistant", "content": answer}] if answer is not None else []
    options = {
        "tokenize": False,
        "add_generation_prompt": answer is None,
        "date_string": DATE_STRING,
    }
    try:
        return tokenizer.apply_chat_template(system + turns, **options)
    except TemplateError:  # some templates refuse a system message
        return tokenizer.apply_chat_template(turns, **options)


def _end_of_turn(tokenizer: Any) -> int:
    """EOS, or another token where a chat template closes the assistant's turn with it."""
    if not tokenizer.chat_template:
        return tokenizer.eos_token_id
    probe = "0123456789"
    closing = _conversation(tokenizer, "?", probe).rpartition(probe)[2].strip()
    if not closing or tokenizer.eos_token in closing:
        return tokenizer.eos_token_id
    return _ids(tokenizer, closing)[0]


def _ids(tokenizer: Any, text: str, special: bool = True) -> list[int]:
    """Ids with the BOS a tokenizer adds (templates bring their own), and never with an EOS."""
    special = special and not tokenizer.chat_template
    ids: list[int] = tokenizer(text, add_special_tokens=special)["input_ids"]
    return ids[:-1] if special and ids and ids[-1] == tokenizer.eos_token_id else ids


def _no_answer(question: str, found: str) -> str:
    return (
        f"encode: no token of the answer to {question!r} is left to learn: {found}. "
        "The loss would be a mean over nothing. Is the answer empty, or max_length too small?"
    )
