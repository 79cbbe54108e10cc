"""A command line carried out: three verbs, one place where errors become sentences."""

import argparse
import json
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch_alm.cli import report
from torch_alm.cli.attack import attack
from torch_alm.cli.evaluate import evaluate
from torch_alm.cli.report import Result
from torch_alm.cli.saying import SHOWN, complain, say
from torch_alm.cli.unlearn import unlearn
from torch_alm.unlearning.files import FULL, UNWRITABLE, finite
from torch_alm.unlearning.refusal import Refusal

Verb = Callable[[argparse.Namespace, Callable[[str], None]], Result]
VERBS: Mapping[str, Verb] = {"unlearn": unlearn, "evaluate": evaluate, "attack": attack}
REFUSED, INTERRUPTED = 2, 130


def run(given: argparse.Namespace) -> int:
    """Do what was asked, and return the exit code (see `main`).

    A refusal, which is 2, is one sentence on standard error; a run that was stopped is 130.
    """
    # Rust's tokenizers warn about forks they never see here
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    result = _done(given)
    if given.json:
        print(in_json(given, result), flush=True)
    elif result.code == REFUSED:
        complain(result.told)
    else:
        shown = "" if result.content is None else f"{report.terminal(result.content)}\n\n"
        say(shown + result.told)
    return result.code


def _done(given: argparse.Namespace) -> Result:
    shown = SHOWN.set(not given.quiet)
    try:
        with warnings.catch_warnings(), _terminated_as_interrupted():
            warnings.showwarning = _unsaid if given.quiet else _noted
            return VERBS[given.verb](given, teller(given))
    except Refusal as refusal:
        return Result(REFUSED, None, str(refusal))
    except KeyboardInterrupt:
        if not given.json:  # `main` says it, as before anything is imported
            raise
        return Result(INTERRUPTED, None, "Interrupted; nothing was changed.")
    except OSError as error:
        if error.errno not in FULL | UNWRITABLE:
            raise
        told = f"{error.strerror}: {error.filename or given.output}. Is --output writable?"
        return Result(REFUSED, None, told)
    finally:
        SHOWN.reset(shown)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM, by which schedulers end a job, do what Ctrl-C does; in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def teller(given: argparse.Namespace) -> Callable[[str], None]:
    """The function that tells how far a run is: where the result does not stand, or nowhere."""
    return _unsaid if given.quiet else complain if given.json else say


def in_json(given: argparse.Namespace, result: Result) -> str:
    """The result as one line of JSON: numbers and the verdict, but nobody's text."""
    if result.content is None:
        other = "stopped" if result.plan is None else "planned"
        outcome = "refused" if result.code == REFUSED else other
        found: dict[str, Any] = {"outcome": outcome, "code": result.code, "text": result.told}
        found |= {} if result.plan is None else {"plan": result.plan}
    else:
        found = report.summary(result.content)
    return json.dumps(finite({**found, "output": str(given.output)}), ensure_ascii=False)


def _unsaid(*_: object) -> None:
    pass


def _noted(message: Warning | str, *rest: object) -> None:
    complain(f"note: {message}")
