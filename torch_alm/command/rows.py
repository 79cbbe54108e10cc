"""The user's rows: read as text from files of any kind, checked, and encoded for a model."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias, cast

import pandas as pd  # pyright: ignore[reportMissingTypeStubs]

from torch_alm.command.output import Refusal, first_line
from torch_alm.command.wording import holds, is_distinct, plain
from torch_alm.language import Message, Record, Row, read_records, read_text, record_of

KINDS = '{"question", "answer"}, {"prompt", "completion"}, {"messages": [...]} or {"text"}'
SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".txt", ".parquet")
BETWEEN_TEXTS = re.compile(r"^(?:-{3,}|<\|endoftext\|>)[ \t\r]*$", re.MULTILINE)
_SMALL = (
    "a an and are as at by can did do does for from has have he her his how i in is it its me of on"
    " or please say she so tell than that the their there they this to was were what when where"
    " which who whom whose why with you your"
)
SMALL = frozenset(_SMALL.split())
"""Words that say nothing of what is asked or answered."""


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

    def answered(self, answer: str) -> "Entry":
        """The entry with another answer."""
        last: Message = {"role": "assistant", "content": answer}
        messages = (*self.messages[:-1], last) if self.messages else ()
        return replace(self, answer=answer, messages=messages)

    def asked(self, question: str) -> "Entry":
        """The entry with another question; of a conversation, with another last turn but one."""
        if not self.messages:
            return replace(self, prompt=question)
        *before, old, answer = self.messages
        turn: Message = {**old, "content": question}
        return replace(self, prompt=question, messages=(*before, turn, answer))


Encoded: TypeAlias = Sequence[tuple[Entry, Row]]
"""Entries with the tokens of each of their rows."""


def read_entries(
    path: Path, role: str, columns: Mapping[str, Mapping[str, str]] | None = None
) -> list[Entry]:
    """All rows of a file, or of the files in a folder.

    Args:
        path: where they are.
        role: the word for them in a sentence, such as `"forget"`.
        columns: our names and those in the file, by role; those of `""` hold for every file.

    Raises:
        Refusal: no file, no rows, or a row of another form; names file and row.
    """
    names = {**(columns or {}).get("", {}), **(columns or {}).get(role, {})}
    try:
        entries = [_entry(_renamed(record, names), role) for record in records_of(path)]
    except ValueError as error:
        raise Refusal(str(error)) from error
    if not entries:
        raise Refusal(f"the {role} file {path} has no rows. Is it the right file?")
    return entries


def records_of(path: Path) -> list[Record]:
    """All rows of a file, each value as the text that it is; a folder is its files.

    Raises:
        ValueError: it cannot be read as what it is; names file and row.
        OSError: there is no such file.
    """
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
        return [record for each in found for record in records_of(each)]
    kind = path.suffix.lower()
    if kind in (".csv", ".tsv"):
        return [*_table(path, "\t" if kind == ".tsv" else None)]
    if kind == ".parquet":
        return [*_parquet(path)]
    return [*_documents(path)] if kind == ".txt" else read_records(path)


def _table(path: Path, separator: str | None) -> Iterator[Record]:
    """Rows below a line of names; an empty cell is no value."""
    header = next(iter(read_text(path).lstrip().splitlines()), "")
    if not header:
        return
    separator = separator or max((",", ";", "\t"), key=header.count)
    how: Any = {"sep": separator, "dtype": str, "skipinitialspace": f"{separator} " in header}
    try:
        found = pd.read_csv(path, header=None, keep_default_na=False, encoding="utf-8-sig", **how)
    except (pd.errors.ParserError, ValueError) as error:
        told = first_line(error).removeprefix("Error tokenizing data. C error: ")
        raise ValueError(f"{path} is no table ({told}). Is a quotation mark missing?") from error
    names, *rows = ([*row] for row in found.itertuples(index=False, name=None))
    names = [str(name).strip() for name in names]
    if len({*names}) < len(names):
        raise ValueError(
            f"{path} names a column twice ({', '.join(names)}); one is lost. Is it a line of names?"
        )
    for i, cells in enumerate(rows, 1):
        values = [cell if isinstance(cell, str) and cell.strip() else None for cell in cells]
        if any(values):
            yield record_of(f"{path}, row {i}", dict(zip(names, values, strict=True)))


def _parquet(path: Path) -> Iterator[Record]:
    from pyarrow import parquet  # pyright: ignore[reportMissingTypeStubs]

    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except Exception as error:  # of pyarrow: a file cut off, a codec it was built without
        raise ValueError(
            f"{path} cannot be read as Parquet ({first_line(error)}). Is the file cut off?"
        ) from error
    for i, row in enumerate(rows, 1):
        texts = {k: str(v) if isinstance(v, int) else v for k, v in row.items()}
        yield record_of(f"{path}, row {i}", texts)


def _documents(path: Path) -> Iterator[Record]:
    """Texts between lines of hyphens."""
    line = 1
    for document in BETWEEN_TEXTS.split(read_text(path)):
        if document.strip():
            blank = document[: len(document) - len(document.lstrip())]
            where = f"{path}, line {line + blank.count(chr(10))}"
            yield record_of(where, {"text": document.strip("\r\n")})
        line += document.count("\n")


def _renamed(record: Record, columns: Mapping[str, str]) -> Record:
    """The record under our names: those asked for, or all of them, whatever their case."""
    by_case = {name.strip().casefold(): name for name in record.fields}
    if not columns:
        return record._replace(fields={k: record.fields[name] for k, name in by_case.items()})
    if missing := [name for name in columns.values() if name.casefold() not in by_case]:
        raise ValueError(
            f"{record.where} has no column {missing[0]!r} for --columns, only "
            f"{sorted(record.fields)}. Is the name right?"
        )
    theirs = {ours: by_case[name.casefold()] for ours, name in columns.items()}
    return record._replace(fields={ours: record.fields[name] for ours, name in theirs.items()})


def _entry(record: Record, role: str) -> Entry:
    if "question" in record.fields:
        return _pair(record, "question", "answer")
    if "prompt" in record.fields:
        return _pair(record, "prompt", "completion", is_literal=True)
    if "messages" in record.fields:
        return _conversation(record, record.fields["messages"])
    if "text" in record.fields:
        return Entry(record.where, "", record.text("text"))
    raise ValueError(
        f"{record.where} has the fields {sorted(record.fields)}; a row is {KINDS}. Is it the right "
        f"file, or did you mean --columns {role}:question=NAME,answer=NAME?"
    )


def _pair(record: Record, question: str, answer: str, *, is_literal: bool = False) -> Entry:
    other = record.optional_text("paraphrased_question")
    asked, right = record.text(question), record.text(answer)
    return Entry(record.where, asked, right, paraphrase=other, is_literal=is_literal)


def _conversation(record: Record, messages: Any) -> Entry:
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


def _is_message(value: Any) -> bool:
    named = cast("dict[str, Any]", value if isinstance(value, dict) else {})
    return all(isinstance(named.get(key), str) for key in ("role", "content"))


def check_apart(forget: Sequence[Entry], kept: Sequence[Entry], otherwise: str) -> None:
    """Refuse rows that answer a question of the forget rows: the same, or in other words."""
    same = {e.key: e for e in forget}
    found = [(same[e.key], e, "are the same row") for e in kept if e.key in same]
    asks = {id(e): telling(e.prompt) for e in (*forget, *kept)}
    says = {id(e): telling(e.answer) for e in (*forget, *kept)}
    found += [
        (one, other, "ask nearly the same, with the same answer")
        for other in kept
        for one in forget
        if other.key not in same and one.prompt and other.prompt
        if (_is_near(asks[id(one)], asks[id(other)]) and _is_same_answer(one.answer, other.answer))
        or (says[id(one)] == says[id(other)] and _is_misspelt(asks[id(one)], asks[id(other)]))
    ]
    if found:
        one, other, how = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise Refusal(
            f"{one.where} and {other.where} {how}{more}; {otherwise}. Should it stand in one of "
            "the two files only?"
        )


def telling(text: str) -> frozenset[str]:
    """The words that say what a sentence is about."""
    return frozenset(re.findall(r"\w+", plain(text))) - SMALL


def names_in(text: str) -> frozenset[str]:
    """The words with a digit, and those that begin with a capital letter inside the sentence."""
    words = enumerate(re.findall(r"\w+", text))
    found = [word for i, word in words if any(map(str.isdigit, word)) or (i and word[0].isupper())]
    return frozenset(map(plain, found))


def forms_of(words: frozenset[str], text: str) -> dict[str, str]:
    """The words of a text that are one of these, and which: as it is, or as rubles are of ruble."""
    long = {word for word in words if word.isalpha() and len(word) > 3}
    said = telling(text)
    return {form: form[:-1] for form in said if form[:-1] in long} | {w: w for w in words & said}


def _is_near(one: frozenset[str], other: frozenset[str]) -> bool:
    if not one or not other or min(len(one), len(other)) < 2:
        return bool(one) and one == other
    return one <= other or other <= one or len(one & other) >= 0.75 * len(one | other)


def _is_misspelt(one: frozenset[str], other: frozenset[str]) -> bool:
    """Tell whether two questions have the same words but for a letter in some of them; no digit."""
    own, rest = one - other, sorted(other - one)
    is_typo = all(word.isalpha() and get_close_matches(word, rest, 1, 0.8) for word in own)
    return len(one) == len(other) > len(own) and is_typo


def _is_same_answer(one: str, other: str) -> bool:
    one, other = sorted((plain(one), plain(other)), key=len)
    return telling(one) == telling(other) or (is_distinct(one) and holds(other, one))
