"""The error of a request that is refused."""

from collections.abc import Callable
from typing import Any, TypeAlias

Say: TypeAlias = Callable[[str], None]  # shows the user a sentence


class Refusal(ValueError):
    """Raised if a request is refused; says what was found, what it would do, and what to do."""


def attempt(load: Callable[[], Any], name: str, kind: str) -> Any:
    """Load something; raise `Refusal` with the first line of the reason if that fails."""
    try:
        return load()
    except Exception as error:  # transformers has no error of its own for any of the many reasons
        raise Refusal(
            f"cannot load a {kind} from {name!r} ({first_line(error)}). Is it whole, made with "
            "save_pretrained, and all installed that it needs?"
        ) from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its name if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
