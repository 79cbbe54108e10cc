"""Files and folders that are there whole or not at all."""

import errno
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from torch_alm.cli.refusal import Refusal

T = TypeVar("T")


def write_text(path: Path, text: str) -> None:
    """Write a file under another name, then take the name; the old one stays if that fails."""
    with _draft(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_json(path: Path, content: object) -> None:
    """As `write_text`; numbers that are not finite become null."""
    write_text(path, json.dumps(finite(content), indent=2, ensure_ascii=False) + "\n")


def write_tensors(path: Path, content: Mapping[str, Any]) -> None:
    """As `write_text`, with `torch.save`."""
    with _draft(path) as draft:
        torch.save(content, draft)


def write_folder(path: Path, fill: Callable[[Path], T]) -> T:
    """Let `fill` write a folder under another name, then take the name; an old one goes last.

    Returns:
        What `fill` returns.
    """
    draft, old = _beside(path, "partial"), _beside(path, "old")
    with _no_leftovers(draft, path):
        draft.mkdir(parents=True)
        filled = fill(draft)
        if path.exists():
            os.replace(path, old)
        os.replace(draft, path)
    shutil.rmtree(old, ignore_errors=True)
    return filled


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    draft = _beside(path, "partial")
    with _no_leftovers(draft, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        os.replace(draft, path)


@contextmanager
def _no_leftovers(draft: Path, path: Path) -> Iterator[None]:
    """Whatever goes wrong, the draft goes; a full disk becomes a sentence."""
    try:
        yield
    except Exception as error:
        if is_full_disk(error):
            raise Refusal(
                f"there is no space left for {path}; what stood there before is unchanged, and "
                "nothing half-written is left. Is there a larger disk for --output?"
            ) from error
        raise
    finally:
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        draft.unlink(missing_ok=True)


def is_full_disk(error: BaseException) -> bool:
    """Whether an error says so; safetensors and torch.save wrap the system's word for it."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    told = str(error)
    wrapped = "No space left" in told or "os error 28" in told or "code: 28" in told
    # torch's zip writer says only that something is wrong with its buffers
    cut = isinstance(error, RuntimeError) and "PytorchStreamWriter" in told
    cause = error.__cause__ or error.__context__
    return wrapped or cut or (cause is not None and is_full_disk(cause))


def _beside(path: Path, word: str) -> Path:
    return path.with_name(f".{path.name}.{word}-{os.getpid()}")


def finite(value: object) -> object:
    """The value with None for each number that is not finite, which JSON has no word for."""
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in cast("list[object]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
