"""From numbers to a verdict: is the text gone, was it known at all, and what did that cost?"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from torch_alm.cli.goal import WORDS, Goal

Answer: TypeAlias = Mapping[str, Any]
Outcome: TypeAlias = Literal["met", "met at a cost", "not met"]
Reason: TypeAlias = Literal["level", "said", "words", "unmeasured", "not known before"]

CODES: dict[Outcome, int] = {"met": 0, "not met": 3, "met at a cost": 4}
SAID_SHARE = 100  # of so many answers one may still be said, and none of fewer
COST = 0.1  # share of the retain answers, and of their words, that may go
COST_LOSS = 0.1  # nats per token: a perplexity higher by a tenth
ERRORS = 2.0  # standard errors within which a measured level is reached
ROUNDING = 1e-9
UNKNOWN = (
    "the original model does not say these answers either when it is asked like this, so it is not "
    "known what was forgotten. Is it asked in the format it was trained on?"
)


class Kept(NamedTuple):
    """Knowledge of the retain rows: loss, share of their words, share word for word."""

    loss: float
    words: float
    exact: float


@dataclass(frozen=True)
class Evidence:
    """All that was seen when the saved model was asked.

    Attributes:
        goal: what was asked for.
        value: the goal's measure over all forget rows.
        rows: how many there are; a text or an answer cut into several is one.
        said: how many answers are said, in whole or as good as.
        verbatim: how many of them word for word.
        words: mean share of an answer's words that are said in order (ROUGE-L recall).
        unmeasured: how many rows have no finite loss.
        before: the retain rows under the original model.
        after: the retain rows under the saved model.
        max_retain_loss: the most that `after.loss` may be; None for the default limits.
        known_before: whether the original model said the forget answers when it was asked.
        elsewhere: how many answers that are not said when asked for come to another row's question.
        halves: how many rows are texts, of which only the second half was asked for.
    """

    goal: Goal
    value: float
    rows: int
    said: int
    verbatim: int
    words: float
    unmeasured: int
    before: Kept
    after: Kept
    max_retain_loss: float | None = None
    known_before: bool = True
    elsewhere: int = 0
    halves: int = 0

    @property
    def allowed(self) -> int:
        """Number of answers that may still be said."""
        return self.rows // SAID_SHARE


@dataclass(frozen=True)
class Verdict:
    """An outcome, why, and both in words.

    Attributes:
        outcome: `"met"`, `"met at a cost"` or `"not met"`.
        missed: what stands against it, if it is not met.
        text: the outcome and what was seen of the forget rows.
        cost: the retain rows before and after.
    """

    outcome: Outcome
    missed: tuple[Reason, ...]
    text: str
    cost: str

    @property
    def code(self) -> int:
        """The exit code: 0 for met, 4 for met at a cost, 3 for not met."""
        return CODES[self.outcome]


def judge(seen: Evidence) -> Verdict:
    """The verdict.

    The goal is met if its measure is reached over all forget rows, every row was measured, the
    original model knew them, at most one answer in a hundred (none of fewer) is still said, and no
    more of their words than the goal allows. It is met at a cost if the retain rows lost more than
    their limit: `max_retain_loss`, or else a tenth of the answers or words, or 0.1 nats.
    """
    missed, costly = reasons(seen), is_costly(seen)
    outcome: Outcome = "not met" if missed else "met at a cost" if costly else "met"
    head = f"The goal is {outcome}: "
    return Verdict(outcome, missed, head + _told(seen, missed), _cost(seen, costly=costly))


def evidence_of(
    goal: Goal,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    *,
    max_retain_loss: float | None,
    known_before: bool,
) -> Evidence:
    """The evidence of two measurements: of the original model, and of the saved one."""
    forget, answers = after["numbers"]["forget"], after["answers"]["forget"]
    rows = by_row(answers)
    return Evidence(
        goal,
        value=_number(forget["certificate" if goal.kind == "rate" else "loss"]),
        rows=len(rows),
        said=sum(_more_than_allowed(row, "said") for row in rows),
        verbatim=sum(_more_than_allowed(row, "verbatim") for row in rows),
        words=_number(forget["rouge"]),
        unmeasured=sum(any(not math.isfinite(_number(a["loss"])) for a in row) for row in rows),
        before=_kept(before["numbers"]["retain"]),
        after=_kept(after["numbers"]["retain"]),
        max_retain_loss=max_retain_loss,
        known_before=known_before,
        elsewhere=sum(any(a.get("elsewhere", False) for a in row) for row in rows),
        halves=sum(any(a.get("second_half", False) for a in row) for row in rows),
    )


def by_row(answers: Iterable[Answer]) -> list[list[Answer]]:
    """Gather the answers of each row of a file: where one is long, it was cut into several."""
    found: dict[str, list[Answer]] = {}
    for answer in answers:
        found.setdefault(answer["where"], []).append(answer)
    return list(found.values())


def _more_than_allowed(row: Sequence[Answer], key: str) -> bool:
    """Tell whether a row is said: one part in a hundred of a long one may be, as of the rows."""
    return sum(bool(answer[key]) for answer in row) > len(row) // SAID_SHARE


def _kept(numbers: Mapping[str, Any]) -> Kept:
    return Kept(*(_number(numbers[key]) for key in ("loss", "rouge", "exact_match")))


def _number(value: float | None) -> float:
    """A number that went through JSON, which has no word for NaN."""
    return math.nan if value is None else value


def reasons(seen: Evidence) -> tuple[Reason, ...]:
    """All that stands against the goal's being met. A number that is NaN does."""
    goal = seen.goal
    missed: dict[Reason, bool] = {
        "level": not seen.value >= goal.alpha - ERRORS * goal.error - ROUNDING,
        "said": not seen.said <= seen.allowed,
        "words": not seen.words <= goal.words + ROUNDING,
        "unmeasured": seen.unmeasured > 0 or seen.rows == 0,
        "not known before": not seen.known_before,
    }
    return tuple(reason for reason, is_so in missed.items() if is_so)


def is_costly(seen: Evidence) -> bool:
    """True if more of the retain rows was lost than the limit."""
    before, after = seen.before, seen.after
    if seen.max_retain_loss is not None:
        return not after.loss <= seen.max_retain_loss + ROUNDING
    kept = (
        after.loss <= before.loss + COST_LOSS + ROUNDING,
        after.words >= before.words - COST - ROUNDING,
        after.exact >= before.exact - COST - ROUNDING,
    )
    return not all(kept)


def _told(seen: Evidence, missed: tuple[Reason, ...]) -> str:
    """All that was seen of the forget rows, and what stands against the goal first."""
    told = [({"level"}, _level(seen)), ({"said", "words"}, _said(seen, missed))]
    if "unmeasured" in missed:
        told.append(({"unmeasured"}, f"{seen.unmeasured} of {seen.rows} rows were not measured."))
    if "not known before" in missed:
        told.append(({"not known before"}, UNKNOWN))
    first, *others = [text for _, text in sorted(told, key=lambda t: not t[0] & {*missed})]
    others = [text[0].upper() + text[1:] for text in others]
    if missed and "not known before" not in missed and missed != ("unmeasured",):
        others.append(_advice(seen.goal, missed))
    return " ".join([first, *others])


def _advice(goal: Goal, missed: tuple[Reason, ...]) -> str:
    """The question that a goal missed in this way suggests."""
    if missed == ("words",) and goal.kind == "loss" and goal.words == WORDS:
        return (
            "Would more --steps do, or --holdout, which finds out how many words a model says that "
            "never saw the rows?"
        )
    if "said" in missed and "level" not in missed and goal.kind == "loss":
        return "The mean is reached: would --certify 0.95 do, which counts answers?"
    return "Would more --steps or a larger --lr do?"


def _level(seen: Evidence) -> str:
    goal = seen.goal
    if goal.kind == "rate":
        told = "of the forget answers are certified not to be said word for word"
        return f"{seen.value:.1%} {told}; asked for were {goal.alpha:.1%} ({goal.source})."
    told = f"the loss of the forget answers is {seen.value:.2f} nats per token"
    return f"{told}; asked for were {goal.alpha:.2f} ({goal.source})."


def _said(seen: Evidence, missed: tuple[Reason, ...]) -> str:
    count = str(seen.said) if seen.said else "none"
    told = f"{count} of {seen.rows} answers {'are' if seen.said > 1 else 'is'} still said"
    told += f", {seen.verbatim} word for word" if seen.said else ""
    most = f"at most {seen.allowed}" if seen.allowed else "none"
    told += f" ({most} may be)" if "said" in missed else ""
    if seen.elsewhere:
        told += f" ({seen.elsewhere} in answer to another row's question)"
    if seen.halves:
        told += f" (of {seen.halves} texts the second half was asked for)"
    told += f"; {seen.words:.0%} of their words are"
    return told + (f" (at most {seen.goal.words:.0%} may be)." if "words" in missed else ".")


def _cost(seen: Evidence, *, costly: bool) -> str:
    before, after = seen.before, seen.after
    told = (
        f"Of the retain answers {before.exact:.0%} were said word for word and {after.exact:.0%} "
        f"are now, {before.words:.0%} and {after.words:.0%} of their words; their loss was "
        f"{before.loss:.2f} and is {after.loss:.2f}."
    )
    return f"{told} Would a smaller --lr keep more?" if costly else told
