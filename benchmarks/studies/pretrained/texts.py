"""Running text from folders of files: documents, a part of them held out."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SHORTEST = 40
"""Characters of a document; what is shorter is a name or a label."""

HELD_OUT = 20
"""One document in so many is never read."""


def documents(folders: Sequence[Path]) -> Iterator[str]:
    """Yield the texts below folders: of plain files whole, of JSON and CSV one an entry.

    Raises:
        ValueError: A folder holds no text.
    """
    for folder in folders:
        found = False
        for path in sorted(p for p in folder.rglob("*") if p.suffix in READERS):
            for text in READERS[path.suffix](path):
                if len(text.strip()) >= SHORTEST:
                    found = True
                    yield text
        if not found:
            raise ValueError(
                f"{folder} holds no running text ({', '.join(READERS)}); the model would read "
                "nothing of it. Did you mean another folder?"
            )


def is_held_out(text: str) -> bool:
    """Tell whether a document is kept for the test of reading: by its content, whoever asks."""
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % HELD_OUT == 0


def _plain(path: Path) -> Iterator[str]:
    yield path.read_text(encoding="utf-8", errors="replace")


def _json(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    try:
        yield from _entries(json.loads(text))
    except json.JSONDecodeError:  # an entry a line
        for line in text.splitlines():
            if line.strip():
                yield from _entries([json.loads(line)])


def _entries(content: Any) -> Iterator[str]:
    """Yield one text for each entry of a list; the strings of an entry follow each other."""
    for entry in content if isinstance(content, list) else [content]:
        yield "\n".join(_strings(entry))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _csv(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.reader(lines):
            yield "\n".join(row)


READERS = {
    **dict.fromkeys((".txt", ".md", ".rst"), _plain),
    **dict.fromkeys((".json", ".jsonl"), _json),
    ".csv": _csv,
}
"""The reader of a file, by its ending."""
