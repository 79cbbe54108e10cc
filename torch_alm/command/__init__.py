"""The command `torch-alm`: unlearn, evaluate and attack language models from one's own files."""

import argparse
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec

__all__ = ["main"]

NEEDED = ("jinja2", "matplotlib", "pandas", "peft", "rouge_score", "tqdm", "transformers")
REFUSED, INTERRUPTED = 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        The exit code: 0 if it did what was asked, and a goal is met; 4 if it is met at a cost, 3 if
        it is not met; 2 for a refusal, 130 for an interruption.
    """
    try:
        code = _run(sys.argv[1:] if argv is None else [*map(str, argv)])
    except KeyboardInterrupt:
        print("torch-alm: interrupted; what is written stays.", file=sys.stderr)
        return INTERRUPTED
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        from torch_alm.unlearning.ranks import LAST_WORDS, PATIENCE, wait_for_all

        wait_for_all(LAST_WORDS if code == REFUSED else PATIENCE)
        if argv is None:  # the process is over, and ends with its own code
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return code


def _run(argv: list[str]) -> int:
    from torch_alm.command.arguments import parse, spell_options
    from torch_alm.command.output import complain
    from torch_alm.unlearning.errors import Refusal

    try:
        given = parse(argv)
        if int(os.environ.get("WORLD_SIZE") or 1) > 1 and given.verb != "unlearn":
            raise Refusal(
                f"started as several processes, of which each would {given.verb} the whole model. "
                "Did you mean one process?"
            )
        if missing := [name for name in NEEDED if find_spec(name) is None]:
            raise Refusal(
                f"{', '.join(missing)} cannot be imported, and the command cannot read a model "
                "without. Did you mean to install the extra `torch-alm[hf]`?"
            )
    except Refusal as refusal:
        complain(spell_options(str(refusal)))
        return REFUSED
    return _execute(given)


def _execute(given: argparse.Namespace) -> int:
    """Run the verb; print a refusal as one sentence on standard error, or one line of JSON."""
    # Rust's tokenizers warn about forks they never see here
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from torch_alm.command.arguments import spell_options
    from torch_alm.command.attack import attack, evaluate  # seconds: with torch, transformers
    from torch_alm.command.output import Result, complain, is_silent, say
    from torch_alm.command.unlearn import unlearn
    from torch_alm.unlearning.errors import Refusal
    from torch_alm.unlearning.folders import make_finite
    from torch_alm.unlearning.model import silence
    from torch_alm.unlearning.report import summary, to_text

    tell: Callable[[str], None] = complain if given.json else say
    given.quiet = given.quiet or is_silent()  # progress is told once
    tell = (lambda text: None) if given.quiet else tell
    verbs = {"unlearn": unlearn, "evaluate": evaluate, "attack": attack}
    try:
        with silence():
            warnings.showwarning = lambda message, *_, **__: tell(f"note: {message}")
            result = verbs[given.verb](given, tell)
    except Refusal as refusal:
        result = Result(REFUSED, None, spell_options(str(refusal)))
    except OSError as error:
        told = f"{error.strerror}: {error.filename or given.output}. Is it there, and yours?"
        result = Result(REFUSED, None, told)
    if given.json and not is_silent():
        outcome = {REFUSED: "refused", INTERRUPTED: "stopped"}.get(result.code, "planned")
        told = {"outcome": outcome, "code": result.code, "text": result.text}
        found = summary(result.content) if result.content else {**told, **(result.planned or {})}
        line = make_finite({**found, "output": str(given.output)})
        print(json.dumps(line), flush=True)  # in ASCII: any console prints it
    elif result.code == REFUSED:
        complain(result.text)
    else:
        say("\n\n".join([*([to_text(result.content)] if result.content else []), result.text]))
    return result.code
