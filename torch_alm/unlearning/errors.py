"""Refusals: one sentence for whoever asked for what cannot be."""

from collections.abc import Callable
from typing import Any, TypeAlias

Say: TypeAlias = Callable[[str], None]  # tells the user a sentence


class Refusal(ValueError):
    """A sentence for the user: what was found, what would have happened, and what may be meant."""


def attempt(load: Callable[[], Any], name: str, kind: str) -> Any:
    """Load something, or refuse with the first line of the reason why it could not be."""
    try:
        return load()
    except Exception as error:  # transformers has no error of its own for any of the many reasons
        raise Refusal(
            f"cannot load a {kind} from {name!r} ({first_line(error)}). Is it whole, made with "
            "save_pretrained, and all installed that it needs?"
        ) from error


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its name if it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
