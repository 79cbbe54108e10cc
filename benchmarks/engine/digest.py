"""Digests of files and folders that results depend on: a table is of one state of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

READ = (".json", ".jsonl", ".csv", ".txt", ".parquet", ".safetensors", ".bin", ".pt", ".model")
"""Endings of the files that count in a folder, and in the folders right below it."""

BLOCK, BLOCKS = 2**16, 64  # bytes that are read of a file, and at how many places


def digest(path: Path) -> str | None:
    """Sixteen hexadecimal digits of a file, or of a folder's files; None where there is neither."""
    if not path.is_dir():
        return _digest_of(path) if path.exists() else None
    told = "".join(
        f"{file.relative_to(path)} {_digest_of(file)}\n" for file in sorted(_files(path))
    )
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _files(folder: Path) -> Iterator[Path]:
    for file in (*folder.glob("*"), *folder.glob("*/*")):
        if file.is_file() and file.suffix in READ and not file.name.startswith("."):
            yield file


def _digest_of(path: Path) -> str:
    """Sixteen digits of a file's size and of up to four megabytes of it, spread over all of it."""
    size = path.stat().st_size
    found = hashlib.sha256(str(size).encode())
    step = max(BLOCK, size // BLOCKS)
    with path.open("rb") as file:
        for start in range(0, size, step):
            file.seek(start)
            found.update(file.read(BLOCK))
    return found.hexdigest()[:16]
