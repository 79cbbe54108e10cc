"""From words to token rows and batches. A row has labels of -100 where nothing is learned."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias
from unicodedata import category

import torch
from torch import Tensor

from torch_alm.language._formats import (
    PROBE,
    Exchange,
    Format,
    Message,
    end_tokens,
    of_completion,
    of_messages,
    of_question,
)
from torch_alm.language._models import Tokenizer

IGNORE = -100
ASKED = "asked"
"""Key of the prompt in rows whose model is asked with other tokens than precede the answer."""

Row: TypeAlias = dict[str, list[int]]
Batch: TypeAlias = dict[str, Tensor]


def encode(
    tokenizer: Tokenizer,
    question: str,
    answer: str,
    max_length: int = 512,
    form: Format | None = None,
) -> Row:
    r"""Encode a prompt and its answer; the answer and the token that ends it are labelled.

    Models without a chat template get `Question: {q}\nAnswer: {a}` and EOS; chat models get what
    their own template renders. The turn after the generation prompt is labelled, with its blanks
    and the token that ends it. A header that the template puts before the answer
    (`<think></think>`) is not: the model might unlearn it instead. `prompt_ids` ends before it.
    The prompt has the tokens it has on its own; the blank after `Answer:` belongs to the answer.

    Args:
        tokenizer: a tokenizer of transformers, with an EOS token.
        question: the question.
        answer: the answer; without a template its outer white space is dropped.
        max_length: most tokens of a row; a longer answer loses its tail, and EOS.
        form: how the model is asked, where the tokenizer does not say it.

    Raises:
        ValueError: no EOS token, no room for an answer token, a template that does not ask for
            answers as it writes them, or an answer that holds a token that would end it.
    """
    turn = of_question(tokenizer, question, answer, form or Format())
    return _row(tokenizer, turn, max_length, question)


def encode_completion(
    tokenizer: Tokenizer, prompt: str, completion: str, max_length: int = 512
) -> Row:
    """Encode a prompt and its completion as they are: no template, and no blank between them.

    BOS comes first if the tokenizer puts it there, and EOS last unless the completion ends with a
    token that ends turns. Arguments and errors are those of `encode`. Source: TRL's convention.
    """
    check_eos(tokenizer)
    return _row(tokenizer, of_completion(tokenizer, prompt, completion), max_length, prompt)


def encode_messages(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    max_length: int = 512,
    form: Format | None = None,
) -> Row:
    """Encode a conversation whose last turn is the assistant's; that turn alone is labelled.

    The chat template gets the messages (`role`, `content`) as they are, after the system message of
    `form` if they begin with none. Without a chat template, or with a template in `form`, a single
    question and its answer are written as `encode` writes them. Arguments are those of `encode`.

    Raises:
        ValueError: as in `encode`; the last turn is not the assistant's; or several turns, or a
            system message, and no chat template to write them with.
    """
    *before, last = messages
    if last["role"] != "assistant" or not before:
        raise ValueError(
            f"encode_messages: the conversation has {len(messages)} turns and ends with "
            f"{last['role']!r}; there is no answer to score. Is the assistant's last turn missing?"
        )
    form, asked = form or Format(), before[-1]["content"]
    if tokenizer.chat_template and form.template is None:
        return _row(tokenizer, of_messages(tokenizer, messages, form), max_length, asked)
    if len(before) > 1 or before[0]["role"] in ("system", "assistant"):
        roles = ", ".join(m["role"] for m in messages)
        raise ValueError(
            f"encode_messages: {len(messages)} turns ({roles}) of {tokenizer.name_or_path!r}; "
            "without a chat template one question and its answer can be written. Is it a base "
            "model, and are the others to be left out of the rows?"
        )
    return encode(tokenizer, asked, last["content"], max_length, form)


def encode_text(tokenizer: Tokenizer, text: str, max_length: int = 512) -> list[Row]:
    """Encode a plain text, EOS last, in rows of at most `max_length` tokens.

    All tokens are labelled but the first of a row, which nothing predicts.

    Raises:
        ValueError: no EOS token, or fewer than two tokens; names the text.
    """
    check_eos(tokenizer)
    ids = _ids(tokenizer, text)
    ids += [] if ids[-1:] == [tokenizer.eos_token_id] else [tokenizer.eos_token_id]
    if len(ids) < 3 or _is_blank(text):
        raise ValueError(_no_answer(text, "the text has no two tokens"))
    rows = [ids[start : start + max_length] for start in range(0, len(ids) - 1, max_length)]
    return [{"input_ids": row, "labels": [IGNORE, *row[1:]]} for row in rows]


def collate(rows: Sequence[Row], pad_id: int) -> Batch:
    """Stack rows, padded on the right: input_ids, attention_mask, labels, each (rows, longest).

    The mask comes from the lengths: where the pad token is EOS, the EOS of an answer still counts.

    Raises:
        ValueError: a row is not encoded.
    """
    for row in rows:
        if not {"input_ids", "labels"} <= row.keys():
            raise ValueError(
                f"collate: a row has {', '.join(row) or 'nothing'}, where `input_ids` and `labels` "
                "are needed. Did you mean `language.encode(tokenizer, question, answer)` of it?"
            )
    longest = max(len(row["input_ids"]) for row in rows)

    def stack(values: Iterable[list[int]], fill: int) -> Tensor:
        return torch.tensor([[*value, *[fill] * (longest - len(value))] for value in values])

    return {
        "input_ids": stack((row["input_ids"] for row in rows), pad_id),
        "attention_mask": stack(([1] * len(row["input_ids"]) for row in rows), 0),
        "labels": stack((row["labels"] for row in rows), IGNORE),
    }


def answer_ids(row: Row) -> list[int]:
    """Return the labelled tokens of a row."""
    return [label for label in row["labels"] if label >= 0]


def prompt_ids(row: Row) -> list[int]:
    """Return the tokens a model is to continue: those before the answer and its header."""
    return row.get(ASKED, row["input_ids"][: len(row["input_ids"]) - len(answer_ids(row))])


def pad_id(tokenizer: Tokenizer) -> int:
    """Return the pad token's id, or EOS where there is none (Llama)."""
    check_eos(tokenizer)
    return tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id


def check_eos(tokenizer: Tokenizer) -> None:
    """Raise a ValueError for a tokenizer without EOS: answers would never end."""
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"{type(tokenizer).__name__} {tokenizer.name_or_path!r} has no EOS token: "
            "answers would never end. Did you mean to set tokenizer.eos_token?"
        )


def _row(tokenizer: Tokenizer, turn: Exchange, max_length: int, question: str) -> Row:
    check_eos(tokenizer)
    if _is_blank(turn.answer) or not _ids(tokenizer, turn.answer, bos=False):
        raise ValueError(_no_answer(question, "the answer has no tokens that anybody could see"))
    closing, last = _until_end(tokenizer, turn.closing)
    if found := [end for end in (last, tokenizer.eos_token) if end in turn.answer]:
        raise ValueError(
            f"encode: the answer to {question!r} holds {found[0]!r}, which ends a turn, so that "
            "nothing after it would ever be asked. Is it left over from a template?"
        )
    header, bos = turn.header.rstrip(), not turn.is_chat
    said = turn.header[len(header) :] + turn.answer + closing
    asked = _ids(tokenizer, turn.prompt, bos=bos)
    head = [*asked, *_tail(tokenizer, turn.prompt, asked, header, bos=bos)]
    tail = _tail(tokenizer, turn.prompt + header, head, said, bos=bos)
    if len(head) >= max_length:
        found = f"the prompt takes {len(head)} of {max_length} tokens"
        raise ValueError(_no_answer(question, found))
    # a chat template ends the turn itself, if it does at all
    end = [] if closing.strip() or turn.is_chat else [tokenizer.eos_token_id]
    ids = [*head, *tail, *end][:max_length]
    row = {"input_ids": ids, "labels": [IGNORE] * len(head) + ids[len(head) :]}
    return {**row, ASKED: asked} if header else row


def _until_end(tokenizer: Tokenizer, closing: str) -> tuple[str, str]:
    """Return the closing up to the first token that ends turns, and that token, or EOS.

    A closing without such a token is part of the format; a blank one ends nothing.
    """
    texts = [text for text in end_tokens(tokenizer).values() if text in closing]
    if not texts:
        return closing, tokenizer.eos_token
    end = min(texts, key=closing.find)
    return closing[: closing.find(end) + len(end)], end


def _tail(tokenizer: Tokenizer, prompt: str, head: list[int], said: str, *, bos: bool) -> list[int]:
    """Encode what is said so that the prompt keeps its tokens and the whole decodes to the text.

    Where the tokenizer merges across the boundary, `said` is encoded after a newline, before
    which sentencepiece tokenizers put no blank, or else alone.
    """
    whole = _ids(tokenizer, prompt + said, bos=bos)
    if whole[: len(head)] == head:
        return whole[len(head) :]
    read = _read(tokenizer, whole)
    for lead in ("\n", ""):
        first, ids = (_ids(tokenizer, text, bos=False) for text in (lead, lead + said))
        tail = ids[len(first) :]
        if ids[: len(first)] == first and _read(tokenizer, head + tail) == read:
            return tail
    raise ValueError(
        f"encode: {tokenizer.name_or_path!r} has no tokens for {said!r} after {prompt!r} that "
        "leave those of the prompt as they are; what is taught would not be what is asked. Does "
        "the template need a newline or no blank before the answer?"
    )


def _ids(tokenizer: Tokenizer, text: str, *, bos: bool = True) -> list[int]:
    """Return ids with one BOS if the tokenizer has it (chat templates bring theirs), and no EOS."""
    ids, bare, whole = (
        list[int](tokenizer(given, add_special_tokens=special)["input_ids"])
        for given, special in ((text, False), (PROBE, False), (PROBE, True))
    )
    starts = range(len(whole) - len(bare) + 1)
    first = next((i for i in starts if whole[i : i + len(bare)] == bare), starts[-1])
    lead = whole[:first] if bos else []
    return ids if ids[: len(lead)] == lead else [*lead, *ids]


def _read(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _is_blank(text: str) -> bool:
    """Return whether a text has only white space and format characters, such as zero width ones."""
    return all(char.isspace() or category(char) == "Cf" for char in text)


def _no_answer(question: str, found: str) -> str:
    return (
        f"encode: no token of the answer to {question!r} is left to learn: {found}. "
        "The loss would be a mean over nothing. Is the answer empty, or max_length too small?"
    )
