"""Sentences and progress bars on the terminal: prose is wrapped, and bars are as wide."""

import sys
import textwrap
from contextvars import ContextVar
from typing import Any

from tqdm import tqdm

from torch_alm.cli.options import WIDTH

SHOWN = ContextVar("SHOWN", default=True)  # whether the command was asked for bars


def say(text: str) -> None:
    """Print, wrapped where a line is prose."""
    for line in text.split("\n"):
        print(line if len(line) <= WIDTH else _wrapped(line), flush=True)


def complain(text: str) -> None:
    """Print one sentence on standard error."""
    print(_wrapped(f"torch-alm: {text}"), file=sys.stderr, flush=True)


def bar(label: str, form: str, total: int, done: int = 0) -> "tqdm[Any]":
    """A bar on standard error, in the form of tqdm's `bar_format`; `done` were done before."""
    hidden = not SHOWN.get()
    return tqdm(total=total, initial=done, desc=label, ncols=WIDTH, bar_format=form, disable=hidden)


def _wrapped(text: str) -> str:
    # a path that is longer than a line stays whole: it is to be copied
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)
