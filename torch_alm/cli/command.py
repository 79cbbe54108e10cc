"""The command line: three verbs, one place where errors become sentences."""

import argparse
import os
import sys
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence

from torch_alm.cli.attack import attack
from torch_alm.cli.evaluate import evaluate
from torch_alm.cli.options import WIDTH, parser
from torch_alm.cli.refusal import Refusal
from torch_alm.cli.unlearn import unlearn
from torch_alm.cli.writing import is_full_disk

Verb = Callable[[argparse.Namespace, Callable[[str], None]], int]
VERBS: Mapping[str, Verb] = {"unlearn": unlearn, "evaluate": evaluate, "attack": attack}


def run(argv: Sequence[str] | None = None) -> int:
    """Do what was asked.

    Returns:
        0; 2 for a refusal, which is one sentence on standard error; 130 for a run that was stopped.
    """
    given = parser().parse_args(argv)
    # Rust's tokenizers warn about forks they never see here
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _noted
            return VERBS[given.verb](given, say)
    except Refusal as refusal:
        complain(str(refusal))
    except OSError as error:
        if not is_full_disk(error) and not isinstance(error, PermissionError | NotADirectoryError):
            raise
        complain(f"{error.strerror}: {error.filename or given.output}. Is --output writable?")
    return 2


def say(text: str) -> None:
    """Print, wrapped where a line is prose."""
    for line in text.split("\n"):
        print(line if len(line) <= WIDTH else _wrapped(line), flush=True)


def complain(text: str) -> None:
    """One sentence on standard error."""
    print(_wrapped(f"torch-alm: {text}"), file=sys.stderr, flush=True)


def _wrapped(text: str) -> str:
    # a path that is longer than a line stays whole: it is to be copied
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)


def _noted(message: Warning | str, *rest: object) -> None:
    complain(f"note: {message}")
