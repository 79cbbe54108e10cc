"""The options of the command: names, values and sources."""

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import fields
from difflib import get_close_matches
from inspect import getdoc
from pathlib import Path
from typing import Any, NoReturn

from torch_alm import __version__
from torch_alm.command.output import WIDTH
from torch_alm.unlearning.errors import Refusal
from torch_alm.unlearning.options import (
    CHOICES,
    LEAST,
    POSITIVE,
    SHARES,
    Options,
    check_name,
    names_of,
    options_of,
)

COLUMNS = ("question", "answer", "prompt", "completion", "messages", "text", "paraphrased_question")
VERBS = {
    "unlearn": "make a model forget rows and keep others",
    "evaluate": "what a model knows of your rows",
    "attack": "try to bring forgotten answers back",
}
NUMBERS = (*POSITIVE, *SHARES)
FILES = ("forget", "retain", "holdout", "probe")

DESCRIPTION = """\
Unlearn, evaluate and attack language models from your own files.

A file holds JSON lines, JSON, CSV, TSV or Parquet, with rows of {"question",
"answer"}, or {"prompt", "completion"}, or {"messages": [...]} that end with
the assistant's answer, or {"text"}; or it is plain text. A folder is its files.
Options may stand in a file, too: torch-alm unlearn @FILE"""

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
        raise Refusal(message if message.endswith("?") else f"{message.rstrip('.')}. See --help.")

    def convert_arg_line_to_args(self, arg_line: str) -> list[str]:
        """Split a line of a file as a shell does."""
        try:
            return shlex.split(arg_line, comments=True)
        except ValueError as error:
            self.error(f"{arg_line!r} in a file of options: {error}")


class _Form(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=WIDTH)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        """Return the help of an option, with its default if that is a value."""
        is_value = not isinstance(action.default, bool | list | None) and action.nargs != 0
        return f"{action.help} (default: %(default)s)" if is_value else action.help


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; raise `Refusal` for a bad one."""
    whole, verbs = _make_parsers()
    if argv and argv[0] in verbs:
        known = [o for a in verbs[argv[0]]._actions for o in a.option_strings]  # no other list
        for each in argv[1:]:
            if each.startswith("--"):
                check_name(argv[0], each.partition("=")[0], known)
    given = whole.parse_args(argv)
    given.columns = _parse_columns(given.columns)
    options_of(given)  # which raises for a value that makes no sense
    return given


def _make_parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parsers of the command and its three verbs."""
    whole = _Parser(
        prog="torch-alm",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=_Form,
        fromfile_prefix_chars="@",
    )
    whole.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parts = whole.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs: dict[str, argparse.ArgumentParser] = {}
    for name, told in VERBS.items():
        how: Any = {"help": told, "description": told, "formatter_class": _Form}
        verb = verbs[name] = parts.add_parser(name, allow_abbrev=False, **how)
        _add_files(verb, name)
        _add_options(verb, name)
    return whole, verbs


def _add_files(verb: argparse.ArgumentParser, name: str) -> None:
    """Add what is the command's alone."""
    add = verb.add_argument
    file: dict[str, Any] = {"type": _check_path, "metavar": "FILE"}
    add("--model", required=True, metavar="M", help="a folder made with save_pretrained, or a name")
    add("--forget", required=True, **file, help="rows to forget")
    add("--retain", required=True, **file, help="rows to keep")
    add("--holdout", **file, help="rows of the same kind, never trained on")
    told = "columns under other names: question=Q,answer=A, or of one file alone "
    told += "forget:question=Q; may be repeated"
    add("--columns", action="append", default=[], metavar="OURS=THEIRS,...", help=told)
    add("--output", required=True, type=Path, metavar="DIR", help="where the results go")
    add("--force", action="store_true", help="replace what an earlier run wrote into DIR")
    told = "one line of JSON on standard output, and nothing else there"
    add("--json", action="store_true", help=told)
    add("--device", default="auto", choices=("auto", "cpu", "cuda", "mps"), help="where to compute")
    if name != "attack":
        told = "rows that shall stay known and are never trained on; may be repeated"
        add("--probe", action="append", default=[], **file, help=told)
    if name == "unlearn":
        told = "say what the model knows now, and what a step takes; write nothing"
        add("--dry-run", action="store_true", help=told)
    elif name == "evaluate":
        add("--original", metavar="M", help="a second model to compare with")
    else:
        add("--compare", metavar="M", help="attack this model, too: one that never saw the rows")


def _add_options(verb: argparse.ArgumentParser, name: str) -> None:
    """Add the options of a verb, with defaults and descriptions of `Options`."""
    told = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", getdoc(Options) or "", re.MULTILINE)
    described = {option: " ".join(text.split()) for option, text in told}
    for option in names_of(name):
        how: dict[str, Any] = {"help": described.get(option), "default": getattr(Options, option)}
        if how["default"] is False:
            how["action"] = "store_true"
        elif option in CHOICES:
            how["choices"] = CHOICES[option]
        elif option in LEAST:
            how |= {"type": int, "metavar": "N"}
        else:
            how |= {"type": float, "metavar": "X"} if option in NUMBERS else {"metavar": "TEXT"}
        verb.add_argument(f"--{option}".replace("_", "-"), **how)
    if name == "attack":
        verb.set_defaults(rows=None)


def _check_path(text: str) -> Path:
    path = Path(text)
    if not path.exists():
        raise argparse.ArgumentTypeError(f"cannot read {text}. Is the path right?")
    return path


def spell_options(told: str) -> str:
    """Return a sentence with options as they are typed: --max-length for `max_length`."""
    names = [*FILES, "device", *(each.name for each in fields(Options))]
    typed = {name: f"--{name}".replace("_", "-") for name in names}
    return re.sub("`([a-z_]+)`", lambda found: typed.get(found[1], found[0]), told)


def _parse_columns(given: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return our column names and the user's by file; those of `""` are for every file."""
    found: dict[str, dict[str, str]] = {}
    for pair in ",".join(given).split(",") if given else ():
        ours, _, theirs = (part.strip() for part in pair.partition("="))
        file, _, name = ours.rpartition(":")
        if file not in ("", *FILES) or name not in COLUMNS or not theirs:
            meant = [*get_close_matches(name, COLUMNS, 1), "question=Q,answer=A"][0]
            raise Refusal(
                f"--columns {pair!r} names no column of ours ({', '.join(COLUMNS)}) with one of "
                f"the file. Did you mean {meant}?"
            )
        found.setdefault(file, {})[name] = theirs
    return found
