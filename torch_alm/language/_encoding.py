"""From words to token rows and batches. A row has labels of -100 where nothing is learned."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from torch_alm.language._types import Tokenizer

IGNORE = -100
DATE_STRING = "10 Apr 2025"  # Llama 3's template prints a date; this one keeps prompts the same
SYSTEM_MESSAGE = "You are a helpful assistant."

Row: TypeAlias = dict[str, list[int]]
Batch: TypeAlias = dict[str, Tensor]
Message: TypeAlias = Mapping[str, str]


def encode(tokenizer: Tokenizer, question: str, answer: str, max_length: int = 512) -> Row:
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
    if tokenizer.chat_template:
        return _encode(tokenizer, _asked(tokenizer, question), answer, max_length, question)
    return _encode(
        tokenizer, f"Question: {question.strip()}\nAnswer:", answer, max_length, question
    )


def encode_messages(
    tokenizer: Tokenizer, messages: Sequence[Message], max_length: int = 512
) -> Row:
    """Tokens of a conversation whose last turn is the assistant's; that turn alone is labelled.

    The messages are given to the template as they are. Without a chat template a single question
    and its answer are written as `encode` writes them.

    Args:
        tokenizer: as in `encode`.
        messages: mappings with `role` and `content`, the last one of the role `assistant`.
        max_length: most tokens of a row, as in `encode`.

    Raises:
        ValueError: as in `encode`; the last turn is not the assistant's; or several turns and no
            template to write them with.
    """
    *before, last = messages
    if last["role"] != "assistant" or not before:
        raise ValueError(
            f"encode_messages: the conversation has {len(messages)} turns and ends with "
            f"{last['role']!r}; there is no answer to score. Is the assistant's last turn missing?"
        )
    if tokenizer.chat_template:
        prompt = _templated(tokenizer, before)
        return _encode(tokenizer, prompt, last["content"], max_length, before[-1]["content"])
    users = [m for m in before if m["role"] != "system"]
    if len(users) > 1:
        raise ValueError(
            f"encode_messages: {len(messages)} turns, and {tokenizer.name_or_path!r} has no chat "
            "template to write them with. Is it a base model, which needs questions and answers?"
        )
    return encode(tokenizer, before[-1]["content"], last["content"], max_length)


def encode_text(tokenizer: Tokenizer, text: str, max_length: int = 512) -> list[Row]:
    """Tokens of a plain text, EOS last, in rows of at most `max_length`; all but each first count.

    A text that is longer goes on in the next row. The first token of a row is predicted by nothing.

    Raises:
        ValueError: no EOS token, or fewer than two tokens; names the text.
    """
    check_eos(tokenizer)
    ids = [*_ids(tokenizer, text, special=True, template=False), tokenizer.eos_token_id]
    if len(ids) < 3 or not text.strip():
        raise ValueError(_no_answer(text, "the text has no two tokens"))
    rows = [ids[start : start + max_length] for start in range(0, len(ids) - 1, max_length)]
    return [{"input_ids": row, "labels": [IGNORE, *row[1:]]} for row in rows]


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


def answer_ids(row: Row) -> list[int]:
    """The labelled tokens of a row."""
    return [label for label in row["labels"] if label >= 0]


def prompt_ids(row: Row) -> list[int]:
    """What precedes the labelled tokens of a row."""
    return row["input_ids"][: len(row["input_ids"]) - len(answer_ids(row))]


def pad_id(tokenizer: Tokenizer) -> int:
    """The pad token's id, or EOS where there is none (Llama)."""
    check_eos(tokenizer)
    return tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id


def check_eos(tokenizer: Tokenizer) -> None:
    """Raises ValueError for a tokenizer without EOS."""
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"{type(tokenizer).__name__} {tokenizer.name_or_path!r} has no EOS token: "
            "answers would never end. Did you mean to set tokenizer.eos_token?"
        )


def _encode(tokenizer: Tokenizer, prompt: str, answer: str, max_length: int, question: str) -> Row:
    check_eos(tokenizer)
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
    row = [*head, *tail, end_of_turn(tokenizer)][:max_length]
    return {"input_ids": row, "labels": [IGNORE] * len(head) + row[len(head) :]}


def _asked(tokenizer: Tokenizer, question: str, answer: str | None = None) -> str:
    """A question (and its answer) below a system message, which some templates refuse."""
    system = [{"role": "system", "content": SYSTEM_MESSAGE}]
    turns = [{"role": "user", "content": question}]
    turns += [{"role": "assistant", "content": answer}] if answer is not None else []
    try:
        return _templated(tokenizer, system + turns)
    except Exception as error:
        # jinja2's, by name: transformers brings jinja2 along, this room imports torch alone
        if not any(kind.__name__ == "TemplateError" for kind in type(error).__mro__):
            raise
        return _templated(tokenizer, turns)


def _templated(tokenizer: Tokenizer, messages: Sequence[Message]) -> str:
    answered = messages[-1]["role"] == "assistant"
    options = {
        "tokenize": False,
        "add_generation_prompt": not answered,
        "date_string": DATE_STRING,
    }
    return tokenizer.apply_chat_template([dict(message) for message in messages], **options)


def end_of_turn(tokenizer: Tokenizer) -> int:
    """The token that ends an answer: EOS, or the one with which a template closes the turn."""
    if not tokenizer.chat_template:
        return tokenizer.eos_token_id
    probe = "0123456789"
    closing = _asked(tokenizer, "?", probe).rpartition(probe)[2].strip()
    if not closing or tokenizer.eos_token in closing:
        return tokenizer.eos_token_id
    return _ids(tokenizer, closing)[0]


def _ids(
    tokenizer: Tokenizer, text: str, *, special: bool = True, template: bool | None = None
) -> list[int]:
    """Ids with the BOS a tokenizer adds (templates bring their own), and never with an EOS."""
    templated = bool(tokenizer.chat_template) if template is None else template
    special = special and not templated
    ids: list[int] = tokenizer(text, add_special_tokens=special)["input_ids"]
    return ids[:-1] if special and ids and ids[-1] == tokenizer.eos_token_id else ids


def _no_answer(question: str, found: str) -> str:
    return (
        f"encode: no token of the answer to {question!r} is left to learn: {found}. "
        "The loss would be a mean over nothing. Is the answer empty, or max_length too small?"
    )
