"""Sentences on the terminal, wrapped where they are prose."""

import sys
import textwrap

from torch_alm.cli.options import WIDTH


def say(text: str) -> None:
    """Print, wrapped where a line is prose."""
    for line in text.split("\n"):
        print(line if len(line) <= WIDTH else _wrapped(line), flush=True)


def complain(text: str) -> None:
    """Print one sentence on standard error."""
    print(_wrapped(f"torch-alm: {text}"), file=sys.stderr, flush=True)


def _wrapped(text: str) -> str:
    # a path that is longer than a line stays whole: it is to be copied
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)
