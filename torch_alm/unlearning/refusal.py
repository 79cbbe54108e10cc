"""Errors that are told in a sentence, without a traceback."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Refusal(ValueError):
    """A sentence for the user: what was found, what would have happened, and what may be meant."""


class Unwritten(Refusal):
    """A file that could not be written: the disk is full, or read-only, or gone."""


def tried(load: Callable[[], Any], name: str, kind: str) -> Any:  # noqa: ANN401
    """Load something, or refuse with the first line of the reason why it could not be."""
    try:
        return load()
    except Exception as error:  # transformers has no error of its own for any of the many reasons
        likely = "a folder made with save_pretrained, or the name of a model on the hub"
        if os.path.isfile(Path(name, "config.json")):
            likely = "a causal language model, whole, and all installed that it needs"
        raise Refusal(
            f"cannot load a {kind} from {name!r} ({first_line(error)}). Is it {likely}?"
        ) from error


def first_line(error: Exception) -> str:
    """The first line of what an error says, or its name if it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
