"""Digests of files and folders that results depend on: a table is of one state of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

WHOLE = 2**26
"""Bytes up to which a file is read whole; of a larger one its ends and its length count."""

READ = (".json", ".jsonl", ".csv", ".txt", ".parquet", ".safetensors", ".bin", ".pt", ".model")
"""Endings of the files that count in a folder, and in the folders right below it."""


def digest(path: Path) -> str | None:
    """Sixteen hexadecimal digits of a file, or of a folder's files; None where there is neither."""
    if not path.exists():
        return None
    found = hashlib.sha256()
    for file in sorted(_files(path)):
        found.update(f"{file.relative_to(path)} {file.stat().st_size}".encode())
        for part in _parts(file):
            found.update(part)
    return found.hexdigest()[:16]


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in (*path.glob("*"), *path.glob("*/*")):
        if file.is_file() and file.suffix in READ and not file.name.startswith("."):
            yield file


def _parts(file: Path) -> Iterator[bytes]:
    size = file.stat().st_size
    with file.open("rb") as opened:
        if size <= WHOLE:
            yield opened.read()
            return
        for at in (0, size - WHOLE // 2):
            opened.seek(at)
            yield opened.read(WHOLE // 2)
