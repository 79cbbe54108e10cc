"""Files and folders that are there whole or not at all."""

import errno
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import torch

from torch_alm.unlearning.refusal import Unwritten

T = TypeVar("T")
Ready: TypeAlias = Callable[[Path, Path], object]

BLOCK = 2**20  # bytes that are read of a file at once
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
UNWRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG}
GONE = {errno.EIO, errno.ESTALE, errno.ENODEV}  # the disk, or the way to it


def digest_of(path: Path) -> str:
    """Sixteen digits of the SHA-256 of a file, which is read from end to end."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found.update(block)
    return found.hexdigest()[:16]


def check_writable(folder: Path, told: str) -> None:
    """Refuse, before the work and not after it, a folder in which nothing can be written.

    Args:
        folder: there or not.
        told: the beginning of the sentence.

    Raises:
        Unwritten: a file is in the way, or what is there is read-only.
    """
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "is read-only, or not yours" if there.is_dir() else "is no folder"
        raise Unwritten(f"{told} cannot be written: {there} {why}. Did you mean another folder?")


def _nothing(draft: Path, path: Path) -> None:
    pass


def write_text(path: Path, text: str, ready: Ready = _nothing) -> None:
    """Write a file under another name, then take the name; the old one stays if that fails.

    Args:
        path: the name.
        text: what it shall hold.
        ready: called with the finished draft and the name, right before the name changes hands.

    Raises:
        Unwritten: there is no space left, or the place cannot be written.
    """
    with _draft(path, ready) as draft, draft.open("w", encoding="utf-8") as file:
        file.write(text)


def write_json(path: Path, content: object, ready: Ready = _nothing) -> None:
    """Write JSON as `write_text` does; numbers that are not finite become null."""
    text = json.dumps(finite(content), indent=2, ensure_ascii=False) + "\n"
    write_text(path, text, ready)


def write_tensors(path: Path, content: Mapping[str, Any]) -> None:
    """Write tensors as `write_text` does, with `torch.save`."""
    with _draft(path, _nothing) as draft, draft.open("wb") as file:
        torch.save(content, file)


def write_folder(path: Path, fill: Callable[[Path], T], ready: Ready = _nothing) -> T:
    """Let `fill` write a folder under another name, then take the name; an old one goes last.

    Returns:
        What `fill` returns.

    Raises:
        Unwritten: there is no space left, or the place cannot be written.
    """
    draft, old = _beside(path, "partial"), _beside(path, "old")
    settle(path)
    with _no_leftovers(draft, path):
        draft.mkdir(parents=True)
        filled = fill(draft)
        _flush(draft)
        ready(draft, path)
        _exchange(draft, path, old)
    shutil.rmtree(old, ignore_errors=True)
    return filled


def settle(path: Path) -> None:
    """End the exchange of a folder in which a run was killed; what lost its name gets it back."""
    for old in path.parent.glob(f".{path.name}.old-*"):
        if path.exists():
            _remove(old)
        else:
            os.replace(old, path)


def _exchange(draft: Path, path: Path, old: Path) -> None:
    try:
        if path.exists():
            os.replace(path, old)
        os.replace(draft, path)
    except BaseException:
        if old.exists() and not path.exists():
            os.replace(old, path)
        raise


@contextmanager
def _draft(path: Path, ready: Ready) -> Iterator[Path]:
    draft = _beside(path, "partial")
    with _no_leftovers(draft, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        _flush(draft)
        ready(draft, path)
        os.replace(draft, path)


def _flush(path: Path) -> None:
    """Wait until it is on the disk: some file systems tell only then that they are full."""
    for file in [path] if path.is_file() else filter(Path.is_file, path.rglob("*")):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


@contextmanager
def _no_leftovers(draft: Path, path: Path) -> Iterator[None]:
    """Remove the draft, whatever goes wrong; a place that takes nothing becomes a sentence."""
    for left in path.parent.glob(f".{path.name}.partial-*"):  # by a run that was killed
        _remove(left)
    try:
        yield
    except Exception as error:
        if (why := why_unwritten(error)) is None:
            raise
        raise Unwritten(
            f"{why} {path}; what stood there before is unchanged, and nothing half-written is "
            "left. Is there a larger disk, or another place, for --output?"
        ) from error
    finally:
        _remove(draft)


def _remove(path: Path) -> None:
    with suppress(OSError):  # it has gone, or the place is read-only by now
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def why_unwritten(error: BaseException) -> str | None:
    """The reason why nothing could be written, for a sentence that goes on with the path, or None.

    safetensors and torch.save wrap the system's word for it.
    """
    found = error.errno if isinstance(error, OSError) else _errno_in(error)
    if found in FULL:
        return "there is no space left for"
    if found in UNWRITABLE | GONE:
        return f"cannot write ({os.strerror(found)})"
    cause = error.__cause__ or error.__context__
    return None if cause is None else why_unwritten(cause)


def _errno_in(error: BaseException) -> int | None:
    told = str(error)
    if (named := re.search(r"\(os error (\d+)\)|code: (\d+)", told)) is not None:
        return int(named[1] or named[2])
    # torch's zip writer says only that something is wrong with its buffers
    cut = isinstance(error, RuntimeError) and "PytorchStreamWriter" in told
    return errno.ENOSPC if cut or "No space left" in told else None


def _beside(path: Path, word: str) -> Path:
    return path.with_name(f".{path.name}.{word}-{os.getpid()}")


def finite(value: object) -> object:
    """The value with None for each number that is not finite, which JSON has no word for."""
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in cast("list[object]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
