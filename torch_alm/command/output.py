"""Print to the terminal, and check that no file of others is overwritten."""

import json
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from torch_alm.unlearning.errors import Refusal

WIDTH = 80


class Result(NamedTuple):
    """The result of a verb: exit code, content of its report, last lines, planned numbers."""

    code: int
    content: Mapping[str, Any] | None
    text: str
    planned: Mapping[str, Any] | None = None


def is_silent() -> bool:
    """Return whether this is one of several processes and not the first, which speaks for all."""
    return (os.environ.get("RANK") or "0") != "0"


def say(text: str) -> None:
    """Print text, with prose wrapped."""
    if is_silent():
        return
    for line in text.split("\n"):
        print(to_printable(line if len(line) <= WIDTH else wrap(line), sys.stdout), flush=True)


def to_printable(text: str, stream: TextIO) -> str:
    r"""Return the text with what the encoding of a stream lacks written as `\xe9`."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def complain(text: str) -> None:
    """Print one sentence on standard error."""
    if is_silent():
        return
    print(to_printable(wrap(f"torch-alm: {text}"), sys.stderr), file=sys.stderr, flush=True)


def wrap(text: str) -> str:
    """Wrap text in lines; a long path stays in one piece, so that it can be copied."""
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)


def check_output(
    folder: Path, targets: Iterable[str], models: Iterable[str | None], *, force: bool
) -> None:
    """Raise `Refusal` if writing the targets would replace other files, or files of a model.

    With `force`, those of an earlier run may be replaced.
    """
    replaced = [folder / name for name in targets]
    for model in (Path(m).resolve() for m in models if m is not None and os.path.isdir(m)):
        is_within = folder.resolve().is_relative_to(model)
        if is_within or any(model.is_relative_to(target.resolve()) for target in replaced):
            raise Refusal(
                f"--output {folder} would write into the folder of the model {model}, or replace "
                "it, and the model would be changed. Did you mean another folder?"
            )
    there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise Refusal(
            f"--output {folder} cannot be written: {there} is no folder, or read-only, or not "
            "yours. Did you mean another folder?"
        )
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise Refusal(
            f"--output {folder} is not empty, and what is there might be overwritten. Did "
            "you mean another folder, or --force?"
        )
    foreign = [] if _holds_run(folder) else [path for path in replaced if os.path.lexists(path)]
    if foreign:
        raise Refusal(
            f"{foreign[0]} was not written by torch-alm, and would be replaced; --force replaces "
            "only what a run has written. Did you mean another --output?"
        )


def _holds_run(folder: Path) -> bool:
    """Return whether an earlier run has written its report there."""
    try:
        found = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        return "torch-alm" in found["versions"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
