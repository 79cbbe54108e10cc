"""Rows as others name them: columns mapped by the user, and the forms of Alpaca and ShareGPT."""

from collections.abc import Mapping
from typing import Any, cast

from torch_alm.language import Record

NAMES = ("question", "answer", "prompt", "completion", "messages", "text", "paraphrased_question")
KEPT = ("paraphrased_question",)
"""Columns that stand beside any form."""

ROLES = {
    "system": "system",
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model"), "assistant"),
}


def renamed(record: Record, columns: Mapping[str, str]) -> Record:
    """The record with the columns that were asked for, under our names; all of it without any.

    Raises:
        ValueError: it has no such column; names file and row.
    """
    if missing := [name for name in columns.values() if name not in record.fields]:
        raise ValueError(
            f"{record.where} has no column {missing[0]!r} for --columns, only "
            f"{sorted(record.fields)}. Is the name right?"
        )
    mapped = {ours: record.fields[theirs] for ours, theirs in columns.items()}
    return record._replace(fields=mapped) if columns else record


def recognized(record: Record) -> Record:
    """The record, in our form if it is one of Alpaca (`instruction`) or ShareGPT (`conversations`).

    Raises:
        ValueError: a turn of another role than the two, or a history that is none; names the row.
    """
    kept = {name: record.fields[name] for name in KEPT if name in record.fields}
    if "conversations" in record.fields:
        return record._replace(fields={"messages": _shared(record), **kept})
    if "instruction" in record.fields and "output" in record.fields:
        return record._replace(fields={**_alpaca(record), **kept})
    return record


def _alpaca(record: Record) -> dict[str, Any]:
    """The instruction, its input on the next line, and the output; what was said before, if any."""
    more = record.fields.get("input")
    question = record.text("instruction") + (f"\n{record.text('input')}" if more else "")
    answer = record.text("output")
    system, history = record.fields.get("system"), record.fields.get("history")
    if not system and not history:
        return {"question": question, "answer": answer}
    turns = [_turn("system", record.text("system"))] if system else []
    for pair in cast("list[Any]", history) if isinstance(history, list) else [history or ()]:
        if not isinstance(pair, list) or len(cast("list[Any]", pair)) != 2:
            raise ValueError(
                f"{record.where}: history must be a list of pairs of a question and its answer, "
                f"found {pair!r}. Is it a file in the form of Alpaca?"
            )
        turns += [_turn("user", pair[0]), _turn("assistant", pair[1])]
    return {"messages": [*turns, _turn("user", question), _turn("assistant", answer)]}


def _shared(record: Record) -> object:
    found = record.fields["conversations"]
    if not isinstance(found, list):
        return found  # refused where conversations are
    turns = [_shared_turn(record.where, turn) for turn in cast("list[Any]", found)]
    system = record.fields.get("system")
    return [_turn("system", record.text("system")), *turns] if system else turns


def _shared_turn(where: str, turn: Any) -> object:  # noqa: ANN401  # whatever JSON holds
    if not isinstance(turn, dict) or not {"from", "value"} <= {*cast("dict[str, Any]", turn)}:
        return turn  # of role and content, or refused where conversations are
    said = cast("dict[str, Any]", turn)
    if not isinstance(said["from"], str) or said["from"] not in ROLES:
        raise ValueError(
            f"{where}: a turn is from {said['from']!r}, and a conversation is between "
            f"{', '.join(ROLES)}; who says what could not be told. Is it a file of tool calls?"
        )
    return _turn(ROLES[said["from"]], said["value"])


def _turn(role: str, content: object) -> dict[str, Any]:
    return {"role": role, "content": content}
