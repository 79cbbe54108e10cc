"""Rows of text and JSON files, each with its place, so that an error can name it."""

import json
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

Parsed: TypeAlias = Any


class Record(NamedTuple):
    """One record and where it was found, such as `"full.json, line 3"`."""

    where: str
    fields: dict[str, Any]

    def text(self, key: str) -> str:
        """Return the non-empty string under `key`, or raise a ValueError that names the row."""
        value = self.fields.get(key)
        if isinstance(value, str) and value.strip():
            return value
        names = sorted(self.fields)
        found = f"{key} is {value!r}" if key in self.fields else f"it has only {names}"
        raise ValueError(
            f"{self.where}: no {key} ({found}). A model would be trained or judged on nothing. "
            "Is the row complete, and its text in quotation marks?"
        )

    def optional_text(self, key: str) -> str | None:
        """Return the text under `key`, or `None` where the key is absent or null."""
        return None if self.fields.get(key) is None else self.text(key)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the non-empty list of non-empty strings under `key`, or raise as `text` does."""
        value = self.fields.get(key)
        given = cast("list[Any]", value) if isinstance(value, list) else []
        if not given or not all(isinstance(text, str) and text.strip() for text in given):
            raise ValueError(
                f"{self.where}: {key} must be a list of non-empty strings, found {value!r}. "
                "Is this the perturbed file?"
            )
        return tuple(given)


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, without its byte order mark; else raise a ValueError."""
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte, line = data[error.start], data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}, line {line} is not UTF-8 text (byte 0x{byte:02x}), and to guess what it says "
            "could lose letters. Did you mean to unpack it, or to save it as UTF-8?"
        ) from error


def read_records(path: Path) -> list[Record]:
    """Read JSON lines, or one JSON list of objects.

    Raises:
        ValueError: no UTF-8 text, broken JSON, or a row that is no object; names file and line.
    """
    text = read_text(path)
    if text.lstrip().startswith("["):
        rows = enumerate(_parse(str(path), text), 1)
        return [record_of(f"{path}, row {number}", row) for number, row in rows]
    # "\n" alone: str.splitlines would also cut at the line separators JSON allows inside strings
    lines = [(f"{path}, line {i}", line) for i, line in enumerate(text.split("\n"), 1)]
    return [record_of(where, _parse(where, line)) for where, line in lines if line.strip()]


def record_of(where: str, value: object) -> Record:
    """Return a record if the value is an object, else raise a ValueError that names the place."""
    if isinstance(value, dict):
        return Record(where, cast("dict[str, Any]", value))
    raise ValueError(
        f"{where} holds a {type(value).__name__} where an object with named fields belongs. "
        "Is it a list of rows?"
    )


def _parse(where: str, text: str) -> Parsed:
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()  # half an emoji is no text
        return found
    except (ValueError, RecursionError) as error:  # not JSON; too many digits or levels
        raise ValueError(
            f"{where} is not valid JSON ({error}). Expected one object per line, or one list of "
            "objects. Is the file cut off, or one object over several lines?"
        ) from error
