"""Reports without the rows: what was asked, what is right and what was said become numbers."""

from collections.abc import Mapping
from typing import Any, cast

TEXTS = {"prompt", "reference", "answer", "earlier"}


def redacted(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with a mark for every text of a row and of a model; places and numbers stay.

    The mark tells how many words there were. A digest would tell more than that: who has a list of
    names or numbers finds the one that it belongs to.
    """
    return {key: _redacted(key, value) for key, value in content.items()}


def _redacted(key: str, value: object) -> object:
    if isinstance(value, str) and key in TEXTS:
        return mark(value)
    if isinstance(value, Mapping):
        return redacted(cast("Mapping[str, Any]", value))
    if isinstance(value, list):
        singular = key.removesuffix("s")  # the answers to an attack
        return [_redacted(singular, item) for item in cast("list[object]", value)]
    return value


def mark(text: str) -> str:
    """The mark for a text."""
    count = len(text.split())
    return f"[redacted: {count} word{'' if count == 1 else 's'}]"
