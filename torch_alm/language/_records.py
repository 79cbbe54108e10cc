"""Rows of text and JSON files, each with the place it stands, so that an error can name it."""

import json
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

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
                "is spelled could only be guessed. Should it be text, in quotation marks?"
            )
        found = f"{key} is {value!r}"
        found = found if key in self.fields else f"it has only {sorted(self.fields)}"
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
        given = cast("list[Parsed]", value) if isinstance(value, list) else []
        if not given or not all(isinstance(text, str) and text.strip() for text in given):
            raise ValueError(
                f"{self.where}: {key} must be a list of non-empty strings, found {value!r}. "
                "Is this the perturbed file?"
            )
        return tuple(given)


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, without its byte order mark.

    Raises:
        ValueError: it is no UTF-8 text; names the first line that is not.
    """
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte, line = data[error.start], data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}, line {line} is not UTF-8 text (byte 0x{byte:02x}), and to guess what it says "
            "could lose letters. Did you mean to unpack it, or to save it as UTF-8 "
            "(iconv -f WINDOWS-1252 -t UTF-8)?"
        ) from error
    if "\0" in text:
        raise ValueError(
            f"{path} holds zero bytes, which no UTF-8 text does. Is it UTF-16 without a mark, or "
            "no text at all?"
        )
    return text


def read_records(path: Path) -> list[Record]:
    """Read JSON lines, or one JSON list of objects.

    Raises:
        ValueError: no text (`read_text`), broken JSON, a name twice in one object, half of a
            surrogate pair, or a row that is no object; names file and line.
    """
    text = read_text(path)
    if text.lstrip().startswith("["):
        values = enumerate(_parse(str(path), text), 1)
        return [record_of(f"{path}, row {number}", value) for number, value in values]
    # "\n" alone: str.splitlines would also cut at the line separators JSON allows inside strings
    lines = enumerate(text.split("\n"), 1)
    found = ((f"{path}, line {number}", line) for number, line in lines if line.strip())
    return [record_of(where, _parse(where, line)) for where, line in found]


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
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where} holds half of a character ({error.object[error.start]!r} alone), which no "
            "tokenizer takes. Was the text cut in the middle of it?"
        ) from error
    return Record(where, cast("dict[str, Any]", value))


def _parse(where: str, text: str) -> Parsed:
    try:
        return json.loads(text, object_pairs_hook=_fields)
    except (ValueError, RecursionError) as error:  # not JSON; too many digits or levels; or ours
        raise ValueError(
            f"{where} is not valid JSON ({error}). Expected one object per line, or one list of "
            "objects. Is the file cut off, or one object over several lines?"
        ) from error


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} stands twice in one object, and only one could count")
    return fields
