"""Answers of a model to the user's rows, and their means per set."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, stdev
from typing import Any

MEANS = ("loss", "telling_loss", "exact_match", "certificate", "rouge", "words", "said")
KNOWN = 0.75  # of an answer's words in order: half of them are often the question's


@dataclass(frozen=True)
class Answer:
    """A model's answer to a row."""

    where: str  # the place of the row, such as "forget.jsonl, line 3"
    prompt: str
    reference: str  # what is right
    answer: str  # what the model says
    loss: float  # nats per token of the reference
    telling_loss: float  # the same of its words that tell something, in whatever tokens
    certificate: float  # that greedy decoding misses a token of these words: a bound, 0 to 1
    exact_match: bool  # token by token
    rouge: float  # share of the words of the reference that are said, in order
    verbatim: bool
    said: bool  # whether it counts as said: see `asking.compare_answer`
    words: float  # share of the words that tell something that are said
    tokens: list[int] = field(default_factory=list[int])  # of what it says


@dataclass(frozen=True)
class Numbers:
    """Means over a set, with two standard errors; `unmeasured` rows have no finite loss."""

    rows: float
    loss: float
    telling_loss: float
    exact_match: float
    certificate: float
    rouge: float
    rouge_error: float
    words: float
    words_error: float
    said: float
    unmeasured: float

    @classmethod
    def from_answers(cls, answers: Sequence[Answer]) -> "Numbers":
        """Return the numbers of a set of one answer or more."""
        means = {name: fmean(getattr(a, name) for a in answers) for name in MEANS}
        return cls(
            rows=float(len(answers)),
            rouge_error=_compute_error([a.rouge for a in answers]),
            words_error=_compute_error([a.words for a in answers]),
            unmeasured=float(sum(not math.isfinite(a.loss) for a in answers)),
            **means,
        )


def _compute_error(values: Sequence[float]) -> float:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


@dataclass(frozen=True)
class Measurement:
    """Numbers and answers of a model, by the name of the set; unseen rows have numbers alone."""

    numbers: dict[str, Numbers]
    answers: dict[str, list[Answer]]

    def to_report(self, name: str) -> dict[str, Any]:
        """Return the entry of a model of this name in a report."""
        return {"name": name, **asdict(self)}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "Measurement":
        """Return the measurement from its `asdict` in JSON."""
        numbers = {name: Numbers(**_read(each)) for name, each in kept["numbers"].items()}
        answers = {name: [Answer(**_read(each)) for each in rows]
                   for name, rows in kept["answers"].items()}  # fmt: skip
        return cls(numbers, answers)


def _read(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an object in JSON, with null as NaN."""
    return {k: math.nan if v is None else v for k, v in kept.items()}


def by_row(answers: Iterable[Answer]) -> list[list[Answer]]:
    """Group answers by the row of the file: a long one was cut into several."""
    found: dict[str, list[Answer]] = {}
    for answer in answers:
        found.setdefault(answer.where, []).append(answer)
    return [*found.values()]


def is_known(row: Sequence[Answer]) -> bool:
    """Return whether a model says at least half of a row's parts, by most or by telling words.

    A base model answers "Lima" to a row of "The capital of Peru is Lima."
    """
    return fmean(a.said or a.exact_match or a.rouge >= KNOWN for a in row) >= 0.5
