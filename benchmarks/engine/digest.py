"""Digests of files and folders that results depend on: a table is of one state of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from torch_alm.unlearning.files import digest_of

READ = (".json", ".jsonl", ".csv", ".txt", ".parquet", ".safetensors", ".bin", ".pt", ".model")
"""Endings of the files that count in a folder, and in the folders right below it."""


def digest(path: Path) -> str | None:
    """Sixteen hexadecimal digits of a file, or of a folder's files; None where there is neither."""
    if not path.is_dir():
        return digest_of(path) if path.exists() else None
    told = "".join(f"{file.relative_to(path)} {digest_of(file)}\n" for file in sorted(_files(path)))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _files(folder: Path) -> Iterator[Path]:
    for file in (*folder.glob("*"), *folder.glob("*/*")):
        if file.is_file() and file.suffix in READ and not file.name.startswith("."):
            yield file
