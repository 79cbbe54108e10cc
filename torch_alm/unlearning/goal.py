"""The goal of a run, and the verdict: forgotten or not, known before, and the cost."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, quantiles, stdev
from typing import Literal, TypeAlias

from torch_alm.language import string_nll
from torch_alm.unlearning.asking import FEW_TOKENS, compare_answers, read_fully
from torch_alm.unlearning.errors import Refusal
from torch_alm.unlearning.loading import UNCUT, Setup, encode_entries
from torch_alm.unlearning.measurement import Answer, Measurement, Numbers, by_row
from torch_alm.unlearning.model import positions_of
from torch_alm.unlearning.options import Options
from torch_alm.unlearning.rows import read_facts

Outcome: TypeAlias = Literal["met", "met at a cost", "not met"]

LEVEL = 4.0  # nats, unless a lower level is measured
ENOUGH = 4  # rows that a model gets wrong, of which a level is made
WORDS = 0.5
CODES: dict[Outcome, int] = {"met": 0, "not met": 3, "met at a cost": 4}
SAID_SHARE = 100  # one answer in so many may still be said, none of fewer
COST = 0.1  # share of the retain answers, and of their words, that may go
COST_LOSS = 0.1  # nats per token: a perplexity higher by a tenth
ERRORS = 2.0  # standard errors within which a measured level is reached
ROUNDING = 1e-6
UNKNOWN = (
    "the original model does not say these answers either when it is asked like this, so it is not "
    "known what was forgotten. Is it asked in the format it was trained on?"
)
UNSEEN = (
    "Nothing that the run had not seen was measured: bring eight retain rows or more, or probe "
    "rows close to the forgotten, which shall stay."
)


@dataclass(frozen=True)
class Goal:
    """The level of forgetting to reach, and its source.

    With kind `"rows"` the telling loss of every answer has to reach it, with `"loss"` their mean.
    Telling words are those that neither the question nor most answers have. On average half of
    them may still be said, or as many as the original model says of rows never seen. Facts that a
    model does not know differ in loss: with `least` each answer has to reach only that.
    """

    kind: Literal["rows", "loss"]
    alpha: float  # the level
    source: str  # in words, for the report
    error: float = 0.0  # standard error of the level, where it was measured
    words: float = WORDS  # share of the words that may still be said
    least: float | None = None  # nats that each answer has to reach, if not the level

    @property
    def summary(self) -> str:
        """The goal in a sentence."""
        is_each = self.kind == "rows" and self.least is None
        each = "every answer" if is_each else "the answers on average"
        told = f"{each} at a telling loss of {self.alpha:.2f} or more ({self.source})"
        return told + ("" if self.least is None else f", and none below {self.least:.2f}")

    @property
    def floor(self) -> float:
        """The nats that each answer has to reach."""
        return self.alpha if self.least is None else self.least

    def count_below(self, rows: Sequence[Sequence[Answer]]) -> int:
        """Return the number of rows below the floor."""
        means = [fmean(part.telling_loss for part in row) for row in rows]
        return sum(not mean >= self.floor - ROUNDING for mean in means)

    def holds(self, numbers: Numbers, rows: Sequence[Sequence[Answer]]) -> bool:
        """Return whether the mean reaches the level, and all rows but 1 % the floor."""
        if self.kind == "rows" and self.count_below(rows) > len(rows) // SAID_SHARE:
            return False
        return numbers.telling_loss >= self.alpha - ERRORS * self.error - ROUNDING


def goal_of(loaded: Setup) -> Goal:
    """Return the goal of the options, measured if they have none."""
    given = loaded.given
    if given.alpha is not None:
        return Goal("loss", given.alpha, "set by hand")
    if rows := loaded.telling_rows("holdout"):
        found = string_nll(loaded.model, loaded.tokenizer, rows)
        if len(found) == 1:
            raise Refusal(
                "`holdout` has a single row, and a level from it would be known to no precision at "
                "all. Are there two or more, or did you mean `alpha`?"
            )
        error = stdev(found) / len(found) ** 0.5
        told = f"that of {len(found)} rows never seen, standard error {error:.2f}"
        return Goal("loss", fmean(found), told, error)
    return _level_of_unknown(loaded)


def _level_of_unknown(loaded: Setup) -> Goal:
    """Return the goal of answers as unknown as facts that the model gets wrong."""
    most = positions_of(loaded.model)
    rows = encode_entries(loaded.tokenizer, read_facts(), UNCUT, loaded.given)
    rows = [(entry, row) for entry, row in rows if len(row["input_ids"]) < most]
    answers = compare_answers(loaded, rows, read_fully(loaded, [rows], spare=(FEW_TOKENS,)))
    wrong = [a.telling_loss for a in answers if not a.said]
    most = min(LEVEL, 0.9 * guess_loss(loaded))
    told = f"{len(wrong)} of {len(answers)} built-in facts that the model gets wrong"
    if len(wrong) < ENOUGH:
        return Goal("rows", most, f"the default maximum, as there are only {told}")
    if fmean(wrong) > most:
        return Goal("rows", most, f"the default maximum: the {told} are at {fmean(wrong):.2f}")
    least = min(quantiles(wrong)[0], fmean(wrong))
    return Goal("rows", fmean(wrong), f"the mean of the {told}", least=least)


def guess_loss(loaded: Setup) -> float:
    """Return the loss of a uniform guess: ln V."""
    return math.log(loaded.model.get_output_embeddings().weight.shape[0])


@dataclass(frozen=True)
class Verdict:
    """An outcome, why, and both in words."""

    outcome: Outcome
    missed: tuple[str, ...]  # reasons if it is not met: see `judge`
    text: str  # the outcome and what was seen of the forget rows
    cost: str  # the retain and the probe rows before and after
    code: int  # with which the command ends


def judge(
    goal: Goal,
    before: Measurement,
    after: Measurement,
    given: Options,
    *,
    known_before: bool = True,
) -> Verdict:
    """Return the verdict on the measurements of the original and of the saved model.

    The goal is met if its measure is reached over all forget rows, every row was measured, the
    original model knew them, at most one answer in a hundred (none of fewer) is still said, and no
    more of their words than the goal allows. It is met at a cost if the retain rows lost more than
    their limit (`max_retain_loss`, or else a tenth of the answers or words, or 0.1 nats), or the
    probe rows more than `max_probe_loss` of the answers that were said.
    """
    numbers, rows = after.numbers["forget"], by_row(after.answers["forget"])
    said = [row for row in rows if _is_said(a.said for a in row)]
    unmeasured = sum(any(not math.isfinite(a.loss) for a in row) for row in rows)
    wrong = {
        "level": not goal.holds(numbers, rows),
        "said": len(said) > len(rows) // SAID_SHARE,
        "words": not numbers.words <= goal.words + ROUNDING,
        "unmeasured": unmeasured > 0 or not rows,
        "not known before": not known_before,
    }
    missed = tuple(reason for reason, is_so in wrong.items() if is_so)
    lost, spoken = lost_of(before.answers.get("probe", ()), after.answers.get("probe", ()))
    was, now = before.numbers["retain"], after.numbers["retain"]
    costly = _is_costly(was, now, given.max_retain_loss)
    costly = costly or len(lost) > given.max_probe_loss * spoken
    outcome: Outcome = "not met" if missed else "met at a cost" if costly else "met"
    told = {
        "level": _describe_level(goal, numbers, rows),
        "said": _describe_said(goal, rows, said, numbers, missed),
        "unmeasured": f"{unmeasured} of {len(rows)} rows were not measured.",
        "not known before": UNKNOWN,
    }
    shown = [key for key in told if key in missed or key in ("level", "said")]
    parts = [told[key] for key in sorted(shown, key=lambda key: key not in missed)]
    first, *others = parts
    text = " ".join([first, *(part[0].upper() + part[1:] for part in others)])
    if missed and missed[-1] != "not known before":
        text += " Would more steps or a higher rate do?"
    cost = (
        f"Of the retain answers {was.said:.0%} were said and {now.said:.0%} are now, "
        f"{was.rouge:.0%} and {now.rouge:.0%} of their words; their loss was {was.loss:.2f} and is "
        f"{now.loss:.2f}. {_describe_probe(lost, spoken) if 'probe' in after.answers else UNSEEN}"
    )
    cost += " Would a lower rate keep more?" if costly else ""
    return Verdict(outcome, missed, f"The goal is {outcome}: {text}", cost, CODES[outcome])


def lost_of(before: Sequence[Answer], after: Sequence[Answer]) -> tuple[list[str], int]:
    """Return the places of the answers no longer said, and how many were said before."""
    was, now = ({row[0].where: all(a.said for a in row) for row in by_row(answers)}
                for answers in (before, after))  # fmt: skip
    said = [where for where in was if was[where]]
    return [where for where in said if not now[where]], len(said)


def _is_said(parts: Iterable[bool]) -> bool:
    """Return whether more than one part in a hundred of a row is said."""
    found = [*parts]
    return sum(found) > len(found) // SAID_SHARE


def _is_costly(before: Numbers, after: Numbers, most: float | None) -> bool:
    """Return whether the retain rows lost more than the limit; NaN counts as lost."""
    if most is not None:
        return not after.loss <= most + ROUNDING
    share = COST + ROUNDING
    is_kept = after.rouge >= before.rouge - share and after.said >= before.said - share
    return not (is_kept and after.loss <= before.loss + COST_LOSS + ROUNDING)


def _describe_level(goal: Goal, numbers: Numbers, rows: Sequence[Sequence[Answer]]) -> str:
    value = numbers.telling_loss
    asked = f"the telling loss of {goal.alpha:.2f} that was asked for ({goal.source})."
    if goal.kind == "rows":
        told = f"{len(rows) - goal.count_below(rows)} of {len(rows)} answers reach "
        if goal.least is None:
            return told + asked
        return f"{told}{goal.least:.2f}, and they are at {value:.2f} on average, beside {asked}"
    return f"the answers are at {value:.2f} on average, beside {asked}"


def _describe_said(
    goal: Goal,
    rows: Sequence[Sequence[Answer]],
    said: Sequence[Sequence[Answer]],
    numbers: Numbers,
    missed: Sequence[str],
) -> str:
    verbatim = sum(_is_said(a.verbatim for a in row) for row in rows)
    told = f"{len(said) or 'none'} of {len(rows)} answers {'are' if len(said) > 1 else 'is'} still "
    told += f"said, {verbatim} word for word" if said else "said"
    allowed = len(rows) // SAID_SHARE
    told += f" ({f'at most {allowed}' if allowed else 'none'} may be)" if "said" in missed else ""
    told += f"; {numbers.words:.0%} of their telling words are"
    return told + (f" (at most {goal.words:.0%} may be)." if "words" in missed else ".")


def _describe_probe(lost: Sequence[str], spoken: int) -> str:
    if not spoken:
        return f"No probe row was said before, so that none could be lost. {UNSEEN}"
    told = f"Of {spoken} probe answers that were said, never trained on, {spoken - len(lost)} still"
    return f"{told} are" + (f"; lost: {', '.join(lost[:5])}." if lost else ".")
