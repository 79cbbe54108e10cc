"""Progress bars on standard error, unless the command was asked to be quiet."""

from contextvars import ContextVar
from typing import Any

from tqdm import tqdm

WIDTH = 80
SHOWN = ContextVar("SHOWN", default=True)


def bar(label: str, form: str, total: int, done: int = 0) -> "tqdm[Any]":
    """A bar as wide as the terminal output is.

    Args:
        label: what is under way.
        form: what stands in it, as tqdm's `bar_format`.
        total: how many there are.
        done: how many of them were done before.
    """
    return tqdm(
        total=total,
        initial=done,
        desc=label,
        ncols=WIDTH,
        bar_format=form,
        disable=not SHOWN.get(),
    )
