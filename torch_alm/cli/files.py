"""The user's rows: questions with answers, conversations, or plain text."""

import warnings
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

from torch_alm.cli.columns import recognized, renamed
from torch_alm.cli.sources import records_of
from torch_alm.cli.windows import UNCUT, windows
from torch_alm.cli.wording import plain
from torch_alm.language import (
    Format,
    Message,
    Record,
    Row,
    Tokenizer,
    encode,
    encode_completion,
    encode_messages,
    encode_text,
)
from torch_alm.unlearning.refusal import Refusal

KINDS = (
    '{"question", "answer"}, {"prompt", "completion"}, {"messages": [...]}, {"text"}, '
    '{"instruction", "input", "output"} or {"conversations": [...]}'
)

UNREAD = ("system", "context", "input", "history")
"""Columns that may belong to a question, and are read in rows of other forms only."""


@dataclass(frozen=True)
class Entry:
    """One row of a file, with the place it stands.

    Attributes:
        where: such as `"forget.jsonl, line 3"`.
        prompt: what is asked, to be shown; empty for plain text.
        answer: what is scored.
        messages: the whole conversation, where the row is one.
        paraphrase: the question in other words, where the row has one.
        is_literal: whether prompt and answer are given to the model as they stand.
    """

    where: str
    prompt: str
    answer: str
    messages: tuple[Message, ...] = field(default=(), compare=False)
    paraphrase: str | None = None
    is_literal: bool = False

    @property
    def is_text(self) -> bool:
        """True if there is nothing but text."""
        return not (self.prompt or self.messages)

    @property
    def key(self) -> tuple[str, str]:
        """A key shared by rows that are the same but for white space and case."""
        return plain(self.prompt), plain(self.answer)


Encoded: TypeAlias = Sequence[tuple[Entry, Row]]
"""Entries with the tokens of each of their rows."""


def read_entries(path: Path, role: str, columns: Mapping[str, str] | None = None) -> list[Entry]:
    """All rows of a file, or of a data set.

    Args:
        path: where they are, as `records_of` takes it.
        role: the word for them in a sentence, such as `"forget"`.
        columns: our names, and those that stand in the file; None takes what is there.

    Raises:
        Refusal: no file, no rows, or a row of another form; names file and row.
    """
    try:
        records = [recognized(renamed(record, columns or {})) for record in records_of(path)]
        entries = [_entry(record) for record in records]
        _tell_unread(path, records)
    except OSError as error:
        raise Refusal(
            f"cannot read the {role} file {path} ({error.strerror}). Is the path right?"
        ) from error
    except ValueError as error:
        raise Refusal(str(error)) from error
    if not entries:
        raise Refusal(
            f"the {role} file {path} has no rows; there would be nothing to "
            f"{role if role in ('forget', 'retain') else 'compare with'}. Is it the right file?"
        )
    return entries


def check_distinct(first: Sequence[Entry], second: Sequence[Entry], otherwise: str) -> None:
    """Refuse rows that stand in both lists: names the first such pair, and how many there are."""
    _refuse_shared([(e.key, e) for e in first], [(e.key, e) for e in second], otherwise)


def check_apart(first: Encoded, second: Encoded, otherwise: str) -> None:
    """Refuse rows that are the same once they are encoded, whatever form they have in the files."""
    _refuse_shared(_by_tokens(first), _by_tokens(second), otherwise)


def _by_tokens(encoded: Encoded) -> list[tuple[Hashable, Entry]]:
    """Each entry with all of its tokens."""
    tokens: dict[int, list[int]] = {}
    for entry, row in encoded:
        tokens.setdefault(id(entry), []).extend(row["input_ids"])
    entries = {id(entry): entry for entry, _ in encoded}
    return [(tuple(ids), entries[i]) for i, ids in tokens.items()]


def _refuse_shared(
    first: Iterable[tuple[Hashable, Entry]],
    second: Iterable[tuple[Hashable, Entry]],
    otherwise: str,
) -> None:
    seen = dict(first)
    shared = [(seen[key], entry) for key, entry in second if key in seen]
    if shared:
        one, other = shared[0]
        more = f" (and {len(shared) - 1} more)" if len(shared) > 1 else ""
        raise Refusal(
            f"{one.where} and {other.where} are the same row{more}; {otherwise}. Should it stand "
            "in one of the two files only?"
        )


def encode_entries(
    tokenizer: Tokenizer, entries: Sequence[Entry], max_length: int, form: Format
) -> list[tuple[Entry, Row]]:
    """Every entry with its tokens; a long text, or answer, is several rows.

    Raises:
        Refusal: a row that cannot be encoded; names file and line.
    """
    return [
        (entry, row) for entry in entries for row in rows_of(tokenizer, entry, max_length, form)
    ]


def paraphrased(entries: Sequence[Entry]) -> list[tuple[Entry, Entry]]:
    """The entries that have a paraphrase, each with itself asked in those words."""
    return [(each, _reworded(each, each.paraphrase)) for each in entries if each.paraphrase]


def _reworded(entry: Entry, question: str) -> Entry:
    """The entry with another question; of a conversation, with another last turn but one."""
    if not entry.messages:
        return replace(entry, prompt=question)
    *before, asked, answer = entry.messages
    turn: Message = {**asked, "content": question}
    return replace(entry, prompt=question, messages=(*before, turn, answer))


def paired(others: Sequence[Entry], entries: Sequence[Entry]) -> list[tuple[Entry, Entry]]:
    """Each of the others behind the entry that has the same answer: in turn, where several have.

    Raises:
        Refusal: none has; names file and row.
    """
    answering: dict[str, list[Entry]] = {}
    for entry in entries:
        answering.setdefault(plain(entry.answer), []).append(entry)
    turns, found = Counter[str](), list[tuple[Entry, Entry]]()
    for other in others:
        answer = plain(other.answer)
        if answer not in answering:
            raise Refusal(
                f"{other.where}: its answer {other.answer!r} is that of no forget row, so asking "
                "it would tell how well something else is known. Is it the right file?"
            )
        found.append((answering[answer][turns[answer] % len(answering[answer])], other))
        turns[answer] += 1
    return found


def rows_of(tokenizer: Tokenizer, entry: Entry, max_length: int, form: Format) -> list[Row]:
    """The tokens of one entry.

    Raises:
        Refusal: it cannot be encoded; names file and line.
    """
    try:
        if entry.is_text:
            return encode_text(tokenizer, entry.answer, max_length)
        if entry.messages:
            whole = encode_messages(tokenizer, entry.messages, UNCUT, form)
        elif entry.is_literal:
            whole = encode_completion(tokenizer, entry.prompt, entry.answer, UNCUT)
        else:
            whole = encode(tokenizer, entry.prompt, entry.answer, UNCUT, form)
        return windows(whole, max_length)
    except ValueError as error:
        raise Refusal(f"{entry.where}: {error}") from error


def _tell_unread(path: Path, records: Sequence[Record]) -> None:
    """Warn where questions stand beside columns that may belong to them."""
    asked = [r.fields for r in records if "question" in r.fields or "prompt" in r.fields]
    if unread := [name for name in UNREAD if any(fields.get(name) for fields in asked)]:
        warnings.warn(
            f"{path}: the column{'s' * (len(unread) > 1)} {', '.join(unread)} beside the questions "
            "will not be read, and the model is asked without. Does it belong to what it was "
            "taught?",
            stacklevel=2,
        )


def _entry(record: Record) -> Entry:
    if "question" in record.fields:
        return _pair(record, "question", "answer")
    if "prompt" in record.fields:
        return _completion(record)
    if "messages" in record.fields:
        return _conversation(record, record.fields["messages"])
    if "text" in record.fields:
        return Entry(record.where, "", record.text("text"))
    raise ValueError(
        f"{record.where} has the fields {sorted(record.fields)}; a row is {KINDS}. Is it the right "
        "file, or did you mean --columns question=NAME,answer=NAME?"
    )


def _pair(record: Record, question: str, answer: str, *, is_literal: bool = False) -> Entry:
    other = record.optional_text("paraphrased_question")
    asked, right = record.text(question), record.text(answer)
    return Entry(record.where, asked, right, paraphrase=other, is_literal=is_literal)


def _completion(record: Record) -> Entry:
    """A prompt and its completion: two texts to be taken as they are, or two lists of turns."""
    prompt, completion = (record.fields.get(name) for name in ("prompt", "completion"))
    if not isinstance(prompt, list) and not isinstance(completion, list):
        return _pair(record, "prompt", "completion", is_literal=True)
    if (
        not (isinstance(prompt, list) and isinstance(completion, list))
        or len(cast("list[Any]", completion)) != 1
    ):
        raise ValueError(
            f"{record.where}: a prompt that is a list of turns needs a completion that is a list "
            "of one, the assistant's; otherwise it could not be told what is to be scored. Is the "
            "conversation cut in the right place?"
        )
    return _conversation(record, [*cast("list[Any]", prompt), *cast("list[Any]", completion)])


def _conversation(record: Record, messages: Any) -> Entry:  # noqa: ANN401  # whatever JSON holds
    if not isinstance(messages, list) or not all(map(_is_message, cast("list[Any]", messages))):
        raise ValueError(
            f"{record.where}: messages must be a list of objects with role and content, both text. "
            "Is it a chat file?"
        )
    turns = cast("list[Message]", messages)
    if len(turns) < 2 or turns[-1]["role"] != "assistant" or not turns[-1]["content"].strip():
        raise ValueError(
            f"{record.where}: the conversation does not end with an answer of the assistant, so "
            "there is nothing to score. Is the last turn missing?"
        )
    asked, answer = turns[-2]["content"], turns[-1]["content"]
    other = record.optional_text("paraphrased_question")
    return Entry(record.where, asked, answer, messages=tuple(turns), paraphrase=other)


def _is_message(value: Any) -> bool:  # noqa: ANN401  # whatever JSON holds
    return (
        isinstance(value, dict)
        and isinstance(cast("dict[str, Any]", value).get("role"), str)
        and isinstance(cast("dict[str, Any]", value).get("content"), str)
    )
