"""The options of the command: names, values and sources."""

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, cast

from torch_alm import __version__
from torch_alm.command.output import WIDTH
from torch_alm.unlearning.errors import Refusal
from torch_alm.unlearning.options import CHOICES, LEAST, Options, fault

COLUMNS = ("question", "answer", "prompt", "completion", "messages", "text", "paraphrased_question")
FILES = ("forget", "retain", "holdout", "probe")

DESCRIPTION = """\
Unlearn, evaluate and attack language models from your own files.

A file holds JSON lines, JSON, CSV, TSV or Parquet, with rows of {"question",
"answer"}, or {"prompt", "completion"}, or {"messages": [...]} that end with
the assistant's answer, or {"text"}; or it is plain text. A folder is its files."""

EXAMPLES = """\
examples:
  torch-alm unlearn --model M --forget forget.jsonl --retain retain.jsonl \\
      --output DIR
  torch-alm evaluate --model DIR/model --forget forget.jsonl \\
      --retain retain.jsonl --output DIR2
  torch-alm attack --model DIR/model --forget forget.jsonl \\
      --retain retain.jsonl --output DIR3"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise `Refusal` with the message, without the usage."""
        raise Refusal(f"{message.rstrip('.')}. See --help.")


class _Form(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=WIDTH)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        """Return the help of an option, with its default if that is a value."""
        is_value = not isinstance(action.default, bool | list | None) and action.nargs != 0
        return f"{action.help} (default: %(default)s)" if is_value else action.help


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line, after the options of its `--config`; raise `Refusal` for a bad one."""
    whole, verbs = _parsers()
    verb = verbs.get(argv[0]) if argv else None
    if verb is None:
        return whole.parse_args(argv)
    argv = [argv[0], *_read_config(argv[1:]), *argv[1:]]
    _check_names(verb, argv[1:])
    given = whole.parse_args(argv)
    given.columns = _columns(given.columns)
    _check_paths(given)
    return given


def _parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parsers of the command and its three verbs."""
    whole = _Parser(
        prog="torch-alm", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=_Form
    )
    whole.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parts = whole.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs: dict[str, argparse.ArgumentParser] = {}
    for name, (told, more) in VERBS.items():
        verb = parts.add_parser(
            name, help=told, description=told, formatter_class=_Form, allow_abbrev=False
        )
        _add_common(verb)
        more(verb)
        verbs[name] = verb
    return whole, verbs


def _add_common(verb: argparse.ArgumentParser) -> None:
    add = verb.add_argument
    add("--config", metavar="FILE", help="options from a YAML file; the command line goes first")
    add("--model", required=True, metavar="M", help="a folder made with save_pretrained, or a name")
    add("--forget", required=True, type=Path, metavar="FILE", help="rows to forget")
    add("--retain", required=True, type=Path, metavar="FILE", help="rows to keep")
    add("--holdout", type=Path, metavar="FILE", help="rows of the same kind, never trained on")
    told = "columns under other names: question=prompt,answer=output, or for one file alone "
    told += "forget:question=prompt; may be repeated"
    add("--columns", action="append", default=[], metavar="OURS=THEIRS,...", help=told)
    add("--output", required=True, type=Path, metavar="DIR", help="where the results go")
    add("--force", action="store_true", help="replace what an earlier run wrote into DIR")
    told = "one line of JSON on standard output, and nothing else there"
    add("--json", action="store_true", help=told)
    add("--quiet", action="store_true", help="no bars and no notes: the result alone")
    form = verb.add_mutually_exclusive_group()
    told = "how the model is asked: a text with {question} and {answer}, or a file with one; "
    told += "default: the chat template, or 'Question: ...' and 'Answer: ...'"
    form.add_argument("--template", metavar="T", help=told)
    told = "system message for the chat template; default: the template's own, or none"
    form.add_argument("--system", metavar="TEXT", help=told)
    add("--device", default="auto", choices=("auto", "cpu", "cuda", "mps"), help="where to compute")
    told = "fp32, or bfloat16 autocast over fp32 weights; auto: bf16 on a GPU that has it"
    add("--precision", default="auto", choices=CHOICES["precision"], help=told)
    told = "most tokens of a row; a longer answer or text is several rows"
    _add_number(verb, "--max-length", "N", told)
    _add_number(verb, "--batch-size", "N", "rows of a kind at once")
    _add_number(verb, "--seed", "N", "of the order of the rows")


def _add_measured(verb: argparse.ArgumentParser) -> None:
    _add_number(verb, "--rows", "N", "most retain, probe and holdout rows to measure")
    told = "rows that shall stay known and are never trained on; may be repeated"
    verb.add_argument("--probe", type=Path, action="append", default=[], metavar="FILE", help=told)


def _add_unlearn(verb: argparse.ArgumentParser) -> None:
    _add_measured(verb)
    add = verb.add_argument
    add("--method", default="dual", choices=CHOICES["method"], help="how to forget")
    told = "forget until the mean telling loss is so many nats; default: until every answer is "
    told += "as unknown as built-in facts that the model gets wrong"
    _add_number(verb, "--alpha", "X", told)
    told = "forget the answers of the file (given), or what the model itself says (said)"
    add("--answers", default="given", choices=CHOICES["answers"], help=told)
    told = "the goal is met at a cost (exit code 4) if the retain loss ends above; default: if a "
    told += "tenth of the retain answers or of their words is lost, or 0.1 nats"
    _add_number(verb, "--max-retain-loss", "X", told)
    told = "likewise if more than this share of the probe answers is lost that were said before"
    _add_number(verb, "--max-probe-loss", "X", told)
    told = "go on though the model does not say the forget answers; no goal counts as met then"
    add("--anyway", action="store_true", help=told)
    told = "say what the model knows now, and what a step takes; write nothing"
    add("--dry-run", action="store_true", help=told)
    told = "train adapters only, and save them; those of the model, if it has some"
    add("--lora", action="store_true", help=told)
    length = verb.add_mutually_exclusive_group()
    told = "most steps; default 1000 or ten epochs, whichever is more; given more, a run that is "
    told += "through goes on"
    _add_number(length, "--steps", "N", told)
    _add_number(length, "--epochs", "N", "most passes over the forget set")
    told = "a learning rate that stays; default: begin where a step changes the forget answers by "
    told += "0.6 nats of log-odds"
    _add_number(verb, "--lr", "X", told)
    told = "first layer that is trained, with all behind it; default: the upper half of a model of "
    told += "eight layers or more, all weights of a smaller one"
    _add_number(verb, "--layers", "N", told)
    _add_number(verb, "--mu", "X", "step size of the multiplier")
    _add_number(verb, "--accumulate", "N", "batches per step")
    told = "compute layers a second time in the backward pass, and keep less in memory"
    add("--gradient-checkpointing", action="store_true", help=told)
    told = "write down, so often, all that a killed run needs to go on"
    _add_number(verb, "--save-every", "MIN", told)
    told = "where the Trainer reports to, such as wandb or tensorboard"
    add("--report-to", default="none", metavar="NAME", help=told)


def _add_attack(verb: argparse.ArgumentParser) -> None:
    add = verb.add_argument
    add("--rows", type=_number("rows"), metavar="N", help="most forget rows to ask; default: all")
    add("--compare", metavar="M", help="attack this model, too: one that never saw the rows")
    _add_number(verb, "--relearn", "N", "examples to relearn on")
    _add_number(verb, "--relearn-steps", "N", "steps of relearning")
    _add_number(verb, "--relearn-lr", "X", "their learning rate")
    _add_number(verb, "--prefix", "X", "share of the answer that is given away")


def _add_evaluate(verb: argparse.ArgumentParser) -> None:
    _add_measured(verb)
    verb.add_argument("--original", metavar="M", help="a second model to compare with")


VERBS = {
    "unlearn": ("make a model forget rows and keep others", _add_unlearn),
    "evaluate": ("what a model knows of your rows", _add_evaluate),
    "attack": ("try to bring forgotten answers back", _add_attack),
}


def _add_number(parser: Any, option: str, metavar: str, told: str) -> None:
    """Add an option of a number, whose default is that of `Options`."""
    name = option[2:].replace("-", "_")
    kind, usual = _number(name), getattr(Options, name)
    parser.add_argument(option, type=kind, default=usual, metavar=metavar, help=told)


def _number(name: str):  # noqa: ANN202  # argparse names a type by its function
    def number(text: str) -> float:
        value = int(text) if name in LEAST else float(text)
        if told := fault(name, value):
            raise argparse.ArgumentTypeError(f"{text} is {told}.")
        return value

    number.__name__ = "whole number" if name in LEAST else "number"
    return number


def _read_config(argv: Sequence[str]) -> Iterator[str]:
    """Yield the options of `--config FILE` in the form of a command line."""
    path = next((b for a, b in pairwise(argv) if a == "--config"), None)
    path = next((a.partition("=")[2] for a in argv if a.startswith("--config=")), path)
    if path is None:
        return
    import yaml  # imported here, as `--help` shall be quick

    try:
        found: Any = yaml.safe_load(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise Refusal(f"--config {path} cannot be read ({error}). Is it YAML?") from error
    if not isinstance(found, dict):
        raise Refusal(f"--config {path} has no options, one a line, such as `steps: 30`. Is it?")
    for name, value in cast("dict[Any, Any]", found).items():
        for one in cast("list[Any]", value) if isinstance(value, list) else [value]:
            if one is not None and one is not False:
                yield f"--{name}".replace("_", "-")
                yield from () if one is True else (str(one),)


def spell_options(told: str) -> str:
    """Return a sentence with options as they are typed: --max-length for `max_length`."""
    names = [*FILES, "device", *(each.name for each in fields(Options))]
    typed = {name: f"--{name}".replace("_", "-") for name in names}
    return re.sub("`([a-z_]+)`", lambda found: typed.get(found[1], found[0]), told)


def _check_names(verb: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    known = [o for a in verb._actions for o in a.option_strings]  # no other list
    for each in argv:
        name = each.partition("=")[0]
        if name.startswith("--") and name not in known:
            near = get_close_matches(name, known, 1, 0.75)
            meant = f"Did you mean {near[0]}?" if near else "Is it of another verb? See --help."
            raise Refusal(f"{verb.prog.split()[-1]} has no option {name}. {meant}")


def _columns(given: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return our column names and the user's by file; those of `""` are for every file."""
    found: dict[str, dict[str, str]] = {}
    for text in given:
        file = ""
        for pair in text.split(","):
            head, colon, rest = pair.partition(":")
            if colon and head.strip() in FILES:
                file, pair = head.strip(), rest
            ours, sign, theirs = (part.strip() for part in pair.partition("="))
            if not sign or ours not in COLUMNS or not theirs:
                near = get_close_matches(ours, COLUMNS, 1)
                meant = near[0] if near else "question=prompt,answer=output"
                raise Refusal(
                    f"--columns {pair!r} names no column of ours ({', '.join(COLUMNS)}) with one "
                    f"of the file. Did you mean {meant}?"
                )
            found.setdefault(file, {})[ours] = theirs
    return found


def _check_paths(given: argparse.Namespace) -> None:
    for name in FILES:
        value = getattr(given, name, None)
        for path in value if isinstance(value, list) else [value]:
            if path is not None and not path.exists():
                raise Refusal(f"cannot read the {name} file {path}. Is the path right?")
