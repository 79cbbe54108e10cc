"""Rows of the user: their forms, and checks that forget and other rows are apart."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

from torch_alm.language import Record, Row, record_of
from torch_alm.language._formats import Message
from torch_alm.language._telling import find_telling
from torch_alm.language._wording import contains, is_distinct, normalise
from torch_alm.unlearning.errors import Refusal

FACTS = Path(__file__).with_name("facts.csv")
ENOUGH = 8  # retain rows, of which some may be set aside
SHARED = {  # sets that must not contain a forget row, and why
    "retain": "it would be forgotten and kept at once",
    "probe": "it would be forgotten and shall stay",
    "holdout": "what was trained on says nothing of what was not",
}
KINDS = '{"question", "answer"}, {"prompt", "completion"}, {"messages": [...]} or {"text"}'


@dataclass(frozen=True)
class Entry:
    """One row of a file."""

    where: str  # such as "forget.jsonl, line 3"
    prompt: str  # the question, for display; empty for plain text
    answer: str  # what is scored
    messages: tuple[Message, ...] = field(default=(), compare=False)  # the whole conversation
    paraphrase: str | None = None  # the question in other words
    is_literal: bool = False  # whether prompt and answer are given to the model as they stand

    @property
    def is_text(self) -> bool:
        """Whether this is plain text, without a prompt."""
        return not (self.prompt or self.messages)

    @property
    def key(self) -> tuple[str, str]:
        """A key shared by rows that differ in white space and case alone."""
        return normalise(self.prompt), normalise(self.answer)

    def with_answer(self, answer: str) -> "Entry":
        """Return the entry with another answer."""
        last: Message = {"role": "assistant", "content": answer}
        messages = (*self.messages[:-1], last) if self.messages else ()
        return replace(self, answer=answer, messages=messages)

    def rephrase(self, question: str) -> "Entry":
        """Return the entry with another question (of a conversation: the last turn but one)."""
        if not self.messages:
            return replace(self, prompt=question)
        *before, old, answer = self.messages
        turn: Message = {**old, "content": question}
        return replace(self, prompt=question, messages=(*before, turn, answer))


Rows: TypeAlias = Iterable[Mapping[str, Any]]
Encoded: TypeAlias = Sequence[tuple[Entry, Row]]  # entries with the tokens of each of their rows


def entry_of(record: Record, fix: str) -> Entry:
    """Return a row as an entry; the ValueError for another form says how to rename columns."""
    if "question" in record.fields:
        return _read_pair(record, "question", "answer")
    if "prompt" in record.fields:
        return _read_pair(record, "prompt", "completion", is_literal=True)
    if "messages" in record.fields:
        return _read_conversation(record, record.fields["messages"])
    if "text" in record.fields:
        return Entry(record.where, "", record.text("text"))
    raise ValueError(
        f"{record.where} has the fields {sorted(record.fields)}; a row is {KINDS}. Is it the right "
        f"file, or did you mean {fix}?"
    )


def _read_pair(record: Record, question: str, answer: str, *, is_literal: bool = False) -> Entry:
    other = record.optional_text("paraphrased_question")
    asked, right = record.text(question), record.text(answer)
    return Entry(record.where, asked, right, paraphrase=other, is_literal=is_literal)


def _read_conversation(record: Record, messages: Any) -> Entry:
    turns = cast("list[Any]", messages if isinstance(messages, list) else [])
    texts: list[tuple[Any, Any]] = [
        (turn.get("role"), turn.get("content")) for turn in turns if isinstance(turn, dict)
    ]
    is_text = len(texts) == len(turns) and all(isinstance(t, str) for pair in texts for t in pair)
    if not is_text or len(turns) < 2 or texts[-1][0] != "assistant" or not texts[-1][1].strip():
        raise ValueError(
            f"{record.where}: messages must be a list of two objects or more with role and "
            "content, both text, of which the last is an answer of the assistant: there is "
            "nothing to score. Is the last turn missing?"
        )
    other = record.optional_text("paraphrased_question")
    asked, answer = texts[-2][1], texts[-1][1]
    return Entry(record.where, asked, answer, messages=tuple(turns), paraphrase=other)


def read_facts() -> list[Entry]:
    """Return built-in questions and answers, most of which a model gets wrong."""
    with FACTS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        Entry(f"{FACTS}, row {i}", row["question"], row["answer"]) for i, row in enumerate(rows, 1)
    ]


def entries_of(rows: Rows | None, role: str) -> list[Entry]:
    """Return rows as entries, named by role and place; empty columns of `datasets` are left out."""
    found: list[Entry] = []
    if isinstance(rows, str | Path | Mapping) or hasattr(rows, "iterrows"):
        raise Refusal(
            f"{role} is a {type(rows).__name__}, and no list of rows. Did you mean `rows.to_dict("
            "'records')` of a frame, or the command, which reads files?"
        )
    try:
        for i, row in enumerate(cast("Iterable[Any]", [] if rows is None else rows), 1):
            record = record_of(f"{role} row {i}", {**row} if isinstance(row, Mapping) else row)
            kept = {k: v for k, v in record.fields.items() if v is not None}
            found.append(entry_of(record._replace(fields=kept), "to rename its columns"))
    except ValueError as error:
        raise Refusal(str(error)) from error
    if rows is not None and not found:
        raise Refusal(f"{role} has no rows, so nothing could be measured. Is it the right list?")
    return found


def sets_of(**rows: Rows | None) -> dict[str, list[Entry]]:
    """Return all sets as entries; raise `Refusal` for a row in two of them."""
    found = {name: entries_of(each, name) for name, each in rows.items()}
    check_sets(found)
    return found


def check_sets(found: Mapping[str, Sequence[Entry]]) -> None:
    """Raise `Refusal` for a row that is in two sets."""
    for name, why in SHARED.items():
        check_apart(found["forget"], found.get(name, ()), why)
        if name != "retain":
            check_apart(found["retain"], found.get(name, ()), SHARED["holdout"])


def set_aside(found: dict[str, list[Entry]]) -> None:
    """Make a fifth of the retain rows the probe, where there are enough."""
    rows = found["retain"]
    if len(rows) >= ENOUGH:
        count = max(ENOUGH // 2, len(rows) // 5)
        chosen = {i * len(rows) // count for i in range(count)}
        found["probe"] = [row for i, row in enumerate(rows) if i in chosen]
        found["retain"] = [row for i, row in enumerate(rows) if i not in chosen]


def check_apart(forget: Sequence[Entry], kept: Sequence[Entry], otherwise: str) -> None:
    """Raise `Refusal` for rows that answer a forget row's question, also in other words."""
    same = {e.key: e for e in forget}
    found = [(same[e.key], e, "are the same row") for e in kept if e.key in same]
    asks = {id(e): find_telling(e.prompt) for e in (*forget, *kept)}
    found += [
        (one, other, "ask nearly the same, with the same answer")
        for other in kept
        for one in forget
        if other.key not in same and one.prompt and other.prompt
        if _is_near(asks[id(one)], asks[id(other)]) and _is_same_answer(one.answer, other.answer)
    ]
    if found:
        one, other, how = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise Refusal(
            f"{one.where} and {other.where} {how}{more}; {otherwise}. Should it stand in one of "
            "the two sets only?"
        )


def _is_near(one: frozenset[str], other: frozenset[str]) -> bool:
    if not one or not other or min(len(one), len(other)) < 2:
        return bool(one) and one == other
    return one <= other or other <= one or len(one & other) >= 0.75 * len(one | other)


def _is_same_answer(one: str, other: str) -> bool:
    one, other = sorted((normalise(one), normalise(other)), key=len)
    return find_telling(one) == find_telling(other) or (is_distinct(one) and contains(other, one))
