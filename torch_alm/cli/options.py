"""The options of the command."""

import argparse
from pathlib import Path

from torch_alm import __version__

WIDTH = 80
METHODS = ("saul", "dual", "grad_diff", "npo", "simnpo")

DESCRIPTION = """\
Unlearn, evaluate and attack language models from your own files.

A file holds JSON lines, JSON, CSV, TSV or Parquet, with rows of {"question",
"answer"}, or {"prompt", "completion"}, or {"messages": [...]} that end with
the assistant's answer, or {"text"}, or in the forms of Alpaca and ShareGPT; or
it is plain text. In its place a data set may be named, as NAME:SPLIT."""

EXAMPLES = """\
examples:
  torch-alm unlearn --model M --forget forget.jsonl --retain retain.jsonl \\
      --output DIR
  torch-alm evaluate --model DIR/model --forget forget.jsonl \\
      --retain retain.jsonl --output DIR2
  torch-alm attack --model DIR/model --forget forget.jsonl \\
      --retain retain.jsonl --output DIR3"""


class _Form(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=WIDTH)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        """The help of an option, with its default if that is a value."""
        is_value = not isinstance(action.default, bool | None) and action.nargs != 0
        return f"{action.help} (default: %(default)s)" if is_value else action.help


def parser() -> argparse.ArgumentParser:
    """The command with its three verbs."""
    command = argparse.ArgumentParser(
        prog="torch-alm", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=_Form
    )
    command.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    verbs = command.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, (told, more) in VERBS.items():
        verb = verbs.add_parser(name, help=told, description=told, formatter_class=_Form)
        _add_common(verb)
        more(verb)
    return command


def _add_common(verb: argparse.ArgumentParser) -> None:
    add = verb.add_argument
    add("--model", required=True, metavar="M", help="a folder made with save_pretrained, or a name")
    add("--forget", required=True, type=Path, metavar="FILE", help="rows to forget")
    add("--retain", required=True, type=Path, metavar="FILE", help="rows to keep")
    add("--holdout", type=Path, metavar="FILE", help="rows of the same kind, never trained on")
    told = "columns of the files under other names: question=prompt,answer=output"
    add("--columns", type=_columns, metavar="OURS=THEIRS,...", help=told)
    add("--output", required=True, type=Path, metavar="DIR", help="where the results go")
    add("--force", action="store_true", help="replace what an earlier run wrote into DIR")
    told = "one line of JSON on standard output, and nothing else there"
    add("--json", action="store_true", help=told)
    told = "leave the texts of rows and answers out of all reports: places and numbers alone"
    add("--redact", action="store_true", help=told)
    add("--quiet", action="store_true", help="no bars and no notes: the result alone")
    form = verb.add_mutually_exclusive_group()
    told = (
        "how the model is asked: a text with {question} and {answer}, or a file with one; default: "
        "the chat template, or 'Question: ...' and 'Answer: ...'"
    )
    form.add_argument("--template", type=_template, metavar="T", help=told)
    told = "system message for the chat template; default: the template's own, or none"
    form.add_argument("--system", metavar="TEXT", help=told)
    add("--device", default="auto", choices=("auto", "cpu", "cuda", "mps"), help="where to compute")
    told = "fp32, or bfloat16 autocast over fp32 weights; auto: bf16 on a GPU that has it"
    add("--precision", default="auto", choices=("auto", "fp32", "bf16"), help=told)
    told = "most tokens of a row; a longer answer or text is several rows"
    add("--max-length", type=_at_least(8), default=512, metavar="N", help=told)
    add("--batch-size", type=_at_least(1), default=8, metavar="N", help="rows of a kind at once")
    add("--seed", type=_seed, default=0, metavar="N", help="of the order of the rows")


def _add_measured(verb: argparse.ArgumentParser) -> None:
    told = "most retain and holdout rows to measure"
    verb.add_argument("--rows", type=_at_least(1), default=200, metavar="N", help=told)


def _add_unlearn(verb: argparse.ArgumentParser) -> None:
    _add_measured(verb)
    add = verb.add_argument
    add("--method", default="saul", choices=METHODS, help="how to forget")
    level = verb.add_mutually_exclusive_group()
    told = "forget until the loss is so many nats per token; default 4, or --holdout's"
    level.add_argument("--alpha", type=float, metavar="X", help=told)
    told = "forget until this share of answers is certified not to be said word for word"
    level.add_argument("--certify", type=float, metavar="RATE", help=told)
    told = "the goal is met at a cost (exit code 4) if the retain loss ends above; default: if a "
    told += "tenth of the retain answers or of their words is lost, or 0.1 nats"
    add("--max-retain-loss", type=_positive, metavar="X", help=told)
    told = "go on though the model does not say the forget answers; no goal counts as met then"
    add("--anyway", action="store_true", help=told)
    told = "train adapters only, and save them; those of the model, if it has some"
    add("--lora", action="store_true", help=told)
    told = "rank of new adapters; default: 16"
    add("--lora-rank", type=_at_least(1), metavar="N", help=told)
    told = "layers that get adapters, such as q_proj,v_proj; default: all-linear"
    add("--lora-targets", type=_names, metavar="NAMES", help=told)
    told = "save a plain model, with the adapters merged into it"
    add("--merge", action="store_true", help=told)
    told = "passes per step: the step of one batch so many times as large, a part at a time"
    add("--accumulate", type=_at_least(1), default=1, metavar="N", help=told)
    told = "compute layers a second time in the backward pass, and keep less in memory"
    add("--gradient-checkpointing", action="store_true", help=told)
    told = "say what would be done, and what memory and time it would take; write nothing"
    add("--dry-run", action="store_true", help=told)
    length = verb.add_mutually_exclusive_group()
    told = "most steps; default 1000 or ten epochs, whichever is more; given more, a run that is "
    told += "through goes on"
    length.add_argument("--steps", type=_at_least(1), metavar="N", help=told)
    told = "most passes over the forget set"
    length.add_argument("--epochs", type=_at_least(1), metavar="N", help=told)
    told = "a learning rate that stays; default: begin at 1e-5, with --lora 1e-4, and find one"
    add("--lr", type=_positive, metavar="X", help=told)
    add("--rho", type=_positive, metavar="X", help="SAUL's radius; default: 1e-3")
    add("--mu", type=_positive, default=0.1, metavar="X", help="step size of lambda")
    told = "of npo (0.1) and simnpo (4.5)"
    add("--beta", type=_positive, metavar="X", help=told)
    told = "write down, so often, all that a killed run needs to go on"
    add("--save-every", type=_positive, default=15.0, metavar="MIN", help=told)


def _add_evaluate(verb: argparse.ArgumentParser) -> None:
    _add_measured(verb)
    verb.add_argument("--original", metavar="M", help="a second model to compare with")


def _add_attack(verb: argparse.ArgumentParser) -> None:
    add = verb.add_argument
    told = "most forget rows to ask; default: all"
    add("--rows", type=_at_least(1), metavar="N", help=told)
    add("--compare", metavar="M", help="attack this model, too: one that never saw the rows")
    told = "the forget questions in other words, with the same answers"
    add("--paraphrases", type=Path, metavar="FILE", help=told)
    add("--relearn", type=_at_least(0), default=8, metavar="N", help="examples to relearn on")
    add("--relearn-steps", type=_at_least(1), default=20, metavar="N", help="steps of relearning")
    add("--relearn-lr", type=_positive, default=1e-4, metavar="X", help="their learning rate")
    told = "share of the answer that is given away"
    add("--prefix", type=_share, default=0.25, metavar="X", help=told)


def _at_least(least: int):  # noqa: ANN202  # argparse names a type by its function
    def count(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{value} is too small. Did you mean {least} or more?")
        return value

    count.__name__ = "whole number"
    return count


def _seed(text: str) -> int:
    if not -(2**63) <= (value := int(text)) < 2**63:
        raise argparse.ArgumentTypeError(f"{text} has more than the 64 bits of a seed. Is 0 meant?")
    return value


def _positive(text: str) -> float:
    if not 0 < (value := float(text)) < 3e38:  # float32's largest
        raise argparse.ArgumentTypeError(f"{text} is not above 0, or too large. Is a sign wrong?")
    return value


def _template(text: str) -> str:
    r"""A file's text, without the newline that ends its last line; or the text, `\n` a newline."""
    from torch_alm.language import Format  # with torch, which --help can do without

    try:
        written = Path(text).read_text(encoding="utf-8-sig").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text} is not UTF-8. Is it a text?") from error
    except (OSError, ValueError):  # no such file, or no name for one
        written = text.replace("\\n", "\n")
    try:
        Format(template=written)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return written


def _columns(text: str) -> dict[str, str]:
    """`ours=theirs,...`."""
    from torch_alm.cli.columns import NAMES

    pairs = [part.partition("=") for part in text.split(",")]
    found = {ours.strip(): theirs.strip() for ours, _, theirs in pairs}
    if not all(found.values()) or not found.keys() <= {*NAMES} or len(found) < len(pairs):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of NAME=COLUMN, each name once and one of {', '.join(NAMES)}. "
            "Did you mean question=prompt,answer=output?"
        )
    return found


def _names(text: str) -> str:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name. Did you mean q_proj,v_proj?")
    return ",".join(sorted(names))


def _share(text: str) -> float:
    if not 0 < (value := float(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no share between 0 and 1. Did you mean 0.25?")
    return value


# argparse names a type by its function
_positive.__name__ = _share.__name__ = "number"
_seed.__name__ = "whole number"

VERBS = {
    "unlearn": ("make a model forget rows and keep others", _add_unlearn),
    "evaluate": ("what a model knows of your rows", _add_evaluate),
    "attack": ("try to bring forgotten answers back", _add_attack),
}
