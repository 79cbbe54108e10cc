"""Rows of JSON files, each with the place it stands, so that an error can name it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from torch_alm.language._texts import read_text

Parsed: TypeAlias = Any


class Record(NamedTuple):
    """One record and where it was found, such as `"full.json, line 3"`."""

    where: str
    fields: dict[str, Any]

    def text(self, key: str) -> str:
        """The non-empty string under `key`; anything else is an error that names the row."""
        value = self.fields.get(key)
        if isinstance(value, str) and value.strip():
            return value
        if value is not None and not isinstance(value, str) and value == value:  # NaN is none
            raise ValueError(
                f"{self.where}: {key} is {value!r}, of the type {type(value).__name__}, and how it "
                "is spelled could only be guessed. Should it be written as text, in quotation "
                "marks?"
            )
        found = (
            f"{key} is {value!r}" if key in self.fields else f"it has only {sorted(self.fields)}"
        )
        raise ValueError(
            f"{self.where}: no {key} ({found}). A model would be trained or judged on nothing. "
            "Is the row complete?"
        )

    def optional_text(self, key: str) -> str | None:
        """The text under `key`, or `None` where the key is absent or null."""
        return None if self.fields.get(key) is None else self.text(key)

    def texts(self, key: str) -> tuple[str, ...]:
        """The non-empty list of non-empty strings under `key`."""
        value = self.fields.get(key)
        if (
            isinstance(value, list)
            and value
            and all(isinstance(t, str) and t.strip() for t in value)
        ):
            return tuple(value)
        raise ValueError(
            f"{self.where}: {key} must be a list of non-empty strings, found {value!r}. "
            "Is this the perturbed file?"
        )


def read_records(path: Path) -> list[Record]:
    """Read JSON lines, or one JSON list of objects.

    Raises:
        ValueError: no text (`read_text`), broken JSON, JSON too deep or with numbers too long for
            Python, a name twice in one object, half of a surrogate pair, or a row that is no
            object; names file and line.
    """
    text = read_text(path)
    if text.lstrip().startswith("["):
        values = enumerate(_parse(str(path), text), 1)
        return [record_of(f"{path}, row {number}", value) for number, value in values]
    # "\n" alone: str.splitlines would also cut at the line separators JSON allows inside strings
    lines = enumerate(text.split("\n"), 1)
    found = ((f"{path}, line {number}", line) for number, line in lines if line.strip())
    return [record_of(where, _parse(where, line)) for where, line in found]


def _parse(where: str, text: str) -> Parsed:
    try:
        return json.loads(text, object_pairs_hook=_fields)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{where} is not valid JSON ({error}). Expected one object per line, or "
            "one list of objects. Is the file cut off, or one object over several lines?"
        ) from error
    except (ValueError, RecursionError) as error:  # of too many digits or levels, or ours below
        raise ValueError(
            f"{where} cannot be read ({error}), so what it says is unknown. Was it written by "
            "a program?"
        ) from error


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} stands twice in one object, and only one could count")
    return fields


def record_of(where: str, value: object) -> Record:
    """A record, if it is an object of whole characters.

    Raises:
        ValueError: it is not; names the place.
    """
    if not isinstance(value, dict):
        raise ValueError(
            f"{where} holds a {type(value).__name__} where an object with named fields belongs. "
            "Is this the right file?"
        )
    try:
        for text in _strings(value):
            text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where} holds half of a character ({error.object[error.start]!r} alone), which no "
            "tokenizer takes. Was the text cut in the middle of it?"
        ) from error
    return Record(where, cast("dict[str, Any]", value))


def _strings(value: Parsed) -> Iterator[str]:
    """All strings in a value at any depth, names included."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, str):
            yield found
        elif isinstance(found, dict):
            waiting += [*found, *found.values()]
        elif isinstance(found, list):
            waiting += found
