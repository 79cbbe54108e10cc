"""Files and folders written whole or not at all."""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar, cast

T = TypeVar("T")

MODEL, REPORTS = "model", ("report.html", "report.json")


def make_finite(value: object) -> object:
    """Return the value with None for each number that is not finite, as JSON requires."""
    if isinstance(value, Mapping):
        return {str(k): make_finite(v) for k, v in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [make_finite(item) for item in cast("list[object]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_text(path: Path, text: str) -> None:
    """Write a file under another name, then rename it; the old one stays if that fails."""
    with _draft(path) as draft:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)


def write_json(path: Path, value: object) -> None:
    """Write JSON as `write_text` does."""
    write_text(path, json.dumps(make_finite(value), indent=1, ensure_ascii=False) + "\n")


def write_folder(path: Path, fill: Callable[[Path], T]) -> T:
    """Fill a folder under another name, then rename it; return what `fill` returns.

    An old folder of this name stays until then, and stays if something goes wrong.
    """
    with _draft(path) as draft:
        draft.mkdir()
        found = fill(draft)
        if path.exists():
            shutil.rmtree(path)
        os.replace(draft, path)
    return found


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        yield draft
    finally:
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)
