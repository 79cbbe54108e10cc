"""The question before training: does the model say at all what it shall forget?"""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from torch_alm.cli.loading import Loaded
from torch_alm.cli.measuring import answers_of, read
from torch_alm.cli.verdict import Answer, by_row
from torch_alm.language import prompt_ids
from torch_alm.unlearning.refusal import Refusal

Answers = Sequence[Answer]

# Of an answer's words, in order. The question's own words are often half of them, and a model that
# was taught answers of the same form has more; one slip in a long answer leaves this much.
WORDS = 0.75
ANSWERS = 0.5  # of the forget answers
EXAMPLES = 3
LONGEST = 300  # characters of a prompt that are shown: its end, where a format goes wrong

REFUSAL = (
    "asked the forget rows{hidden}, the model says {said} of {rows} forget answers ({verbatim} of "
    "them word for word; {words:.0%} of all words). What is not said cannot be seen to go, and the "
    "goal would be met without anything forgotten; --anyway goes on, and then it never counts as "
    "met. Was the model taught in another format (--template, --system, rows of prompt and "
    "completion), or is it another model?"
)


def is_known(
    loaded: Loaded,
    measured: Answers,
    say: Callable[[str], None],
    *,
    anyway: bool,
    redact: bool = False,
) -> bool:
    """Ask every forget row, and tell whether the model says at least half of the answers.

    An answer counts as said if it comes word for word, or with three quarters of its words in order
    (ROUGE-L recall): word for word alone would miss a model with a slip in every long answer.

    Args:
        loaded: the model and its rows.
        measured: the answers to the first forget rows, which are not asked again.
        say: prints three answers beside the truth if it does not.
        anyway: whether a model that does not is unlearned all the same.
        redact: whether the three answers may not be shown.

    Raises:
        Refusal: it does not, and `anyway` is off.

    Cost: greedy answers to the forget rows beyond those of `measured`.
    """
    rest = loaded.sets["forget"][len(measured) :]
    found = [*measured]
    if rest:
        found += answers_of(loaded.tokenizer, rest, read(loaded.model, loaded.tokenizer, rest))
    if fmean(map(is_said_of, by_row(found))) >= ANSWERS:
        return True
    if not redact:
        say(examples(loaded, found))
    if not anyway:
        hidden = " (none is shown, by --redact)" if redact else ""
        raise Refusal(told(found, hidden))
    return False


def is_said(answer: Mapping[str, Any]) -> bool:
    """Tell whether the model says an answer."""
    return bool(answer["exact_match"]) or answer["rouge"] >= WORDS


def is_said_of(row: Answers) -> bool:
    """Tell whether the model says at least half of the parts of a row."""
    return fmean(map(is_said, row)) >= ANSWERS


def told(found: Answers, hidden: str = "") -> str:
    """The refusal: how many answers are said, and the likely reason that no more are."""
    rows = by_row(found)
    return REFUSAL.format(
        hidden=hidden,
        said=sum(map(is_said_of, rows)),
        rows=len(rows),
        verbatim=sum(all(answer["exact_match"] for answer in row) for row in rows),
        words=fmean(answer["rouge"] for answer in found),
    )


def examples(loaded: Loaded, found: Answers) -> str:
    """Answers that are not said: the prompt to the letter, the words said, and those of the row."""
    missed = [i for i, answer in enumerate(found) if not is_said(answer)][:EXAMPLES]
    lines: list[str] = []
    for i in missed:
        entry, row = loaded.sets["forget"][i]
        literal = loaded.tokenizer.decode(prompt_ids(row))
        prompt = found[i]["prompt"] if entry.is_text else literal
        shown = {"asked": prompt[-LONGEST:], "says": found[i]["answer"]}
        shown["should"] = found[i]["reference"]
        lines += [found[i]["where"], *(f"  {name:<7}{text!r}" for name, text in shown.items())]
    return "\n".join(lines)
