"""Settings: what a filter and a rule are, and the one table in which all are checked."""

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

from torch_alm._constraint import numbers
from torch_alm._constraint.numbers import Mask, Number

Sense: TypeAlias = Literal[">=", "<=", "=="]
Policy: TypeAlias = Literal["skip", "raise"]
Given: TypeAlias = Mapping[str, Any]


class Reading(NamedTuple):
    """One step's violation, as a filter sees it.

    Attributes:
        violation: c, positive where the constraint is not met.
        seen: where there is one: True or, of a vector of which a step measured some entries, a
            tensor of truths.
        sense: which violations are to be cut: for `"=="` also negative ones.
    """

    violation: Number
    seen: Mask
    sense: Sense


class Filter(ABC):
    """A pair of functions that makes of noisy violations the one that counts.

    A float is filtered for one number and a float64 tensor, on the host, for a vector. Neither
    function changes what it is given, for a step can be looked at in advance or taken back. A
    memory consists of numbers, tensors, strings, and lists of those or dicts whose keys are
    strings; a checkpoint holds it under the name of the class.
    """

    def init(self) -> Any:  # noqa: ANN401  # any memory
        """Return the memory before the first step."""
        return None

    @abstractmethod
    def update(self, reading: Reading, memory: Any) -> tuple[Number, Any]:  # noqa: ANN401
        """Take in one step; return the filtered violation and the new memory."""

    def moved(self, memory: Any, by: Number) -> Any:  # noqa: ANN401
        """Return the memory as if every violation had been so much larger: alpha has changed.

        The base forgets: what it remembers may be of any form.
        """
        return self.init()


class Update(NamedTuple):
    """One update of the multiplier, as each rule hands it on to the next.

    Attributes:
        stored: the multiplier to be stored; at first the weight.
        mu: the mu of the steps to come; at first the one there is.
        before: the multiplier before this update.
        weight: lambda+ of this step, [before + mu c]_+.
        violation: c, filtered.
        seen: where c is of this step: True or, of a vector of which it measured some entries, a
            tensor of truths. Elsewhere `before` stays, whatever is stored.
        met_for: for how many steps in a row the constraint has been met.
        tolerance: that of the constraint.
    """

    stored: Number
    mu: float
    before: Number
    weight: Number
    violation: Number
    seen: Mask
    met_for: Number
    tolerance: float


class Rule:
    """A step from the weight to the multiplier that is stored, and to the mu that comes next.

    A rule overrides some of these functions; the base changes nothing. Numbers are floats, and
    float64 tensors on the host for a vector. No function changes what it is given. A memory is made
    of what a `Filter`'s is.

    Attributes:
        senses: the senses of constraints that it can be used with.
    """

    senses: ClassVar[tuple[Sense, ...]] = (">=", "<=", "==")

    def init(self) -> Any:  # noqa: ANN401  # any memory
        """Return the memory before the first update."""
        return None

    def update(self, update: Update, memory: Any) -> tuple[Update, Any]:  # noqa: ANN401
        """Return the update, changed by `_replace(stored=...)` or `mu=...`, and the new memory."""
        return update, memory

    def is_waiting(self, steps: int) -> bool:
        """Tell whether, after so many steps, mu acts as 0 and nothing is updated."""
        return False

    def is_limiting(self, multiplier: Number) -> bool:
        """Tell whether some stored multiplier is at a limit of this rule."""
        return False


class Settings(Protocol):
    """The settings of a constraint as its parts read them."""

    @property
    def alpha(self) -> Number: ...

    @property
    def sense(self) -> Sense: ...

    every: int
    filter: Filter | None
    rules: Sequence[Rule]
    tolerance: float
    nonfinite: Policy


class Limit(NamedTuple):
    """The conversion of a setting, a check of it next to the others, and the same in words."""

    convert: Callable[[Any], object]
    holds: Callable[[Given], bool]
    words: str


def settled(
    owner: str, given: Given, limits: Mapping[str, Limit], question: str = ""
) -> dict[str, Any]:
    """Convert settings to numbers of Python or float64 tensors on the host, each beside the others.

    Raises:
        ValueError: for the first that makes no sense; it says what it may be.
    """
    found = {name: numbers.tried(limits[name].convert, value) for name, value in given.items()}
    for name, (_, holds, words) in limits.items():
        if not holds(found):
            raise ValueError(f"{owner}: {name} is {found[name]!r}; it must be {words}.{question}")
    return found


def settle(owner: Filter | Rule, **limits: Limit) -> None:
    """Convert and check the fields of a filter or rule."""
    name = type(owner).__name__
    question = f" Did you mean to leave `{name}` out?"
    vars(owner).update(settled(name, vars(owner), limits, question))


def number(name: str, holds: Callable[[float], bool], words: str) -> Limit:
    """Make the limit of one number."""

    def passes(given: Given) -> bool:
        return isinstance(given[name], float) and holds(given[name])

    return Limit(numbers.single, passes, words)


def count(name: str, least: int) -> Limit:
    """Make the limit of a number of steps."""
    return Limit(
        operator.index,  # 3.0 is none
        lambda given: isinstance(given[name], int) and given[name] >= least,
        f"a number of steps, at least {least}",
    )


def one_of(name: str, *words: str) -> Limit:
    """Make the limit of a word."""
    return Limit(_same, lambda given: given[name] in words, " or ".join(f'"{w}"' for w in words))


def _mu(given: Given) -> bool:
    mu = given["mu"]
    return mu == "auto" if isinstance(mu, str) else isinstance(mu, float) and 0 <= mu < math.inf


def _same(value: object) -> object:
    return value


def _multiplier(given: Given) -> bool:
    multiplier = given["multiplier"]
    return numbers.is_number(multiplier) and (
        given["sense"] == "==" or not numbers.any_of(multiplier < 0)
    )


def _rules(given: Given) -> bool:
    rules = given["rules"]
    return isinstance(rules, tuple) and all(
        isinstance(rule, Rule) and given["sense"] in rule.senses for rule in rules
    )


LIMITS: dict[str, Limit] = {
    "alpha": Limit(
        numbers.host, lambda given: numbers.is_number(given["alpha"]), "a finite threshold"
    ),
    "mu": Limit(
        lambda mu: mu if isinstance(mu, str) else numbers.single(mu),
        _mu,
        'at least 0 (0 fixes the multiplier), or "auto"',
    ),
    "sense": one_of("sense", ">=", "<=", "=="),
    "multiplier": Limit(numbers.host, _multiplier, 'finite, and at least 0 for ">=" and "<="'),
    "every": count("every", 1),
    "filter": Limit(
        _same,
        lambda given: given["filter"] is None or isinstance(given["filter"], Filter),
        "None or a filter, such as torch_alm.filters.Mean(8)",
    ),
    "rules": Limit(
        tuple,
        _rules,
        "a list of rules, such as [torch_alm.rules.Cap(5.0)], each for this sense (an equality has "
        "no side on which it could be left alone)",
    ),
    "tolerance": number("tolerance", lambda value: 0 <= value < math.inf, "at least 0"),
    "nonfinite": one_of("nonfinite", "skip", "raise"),
}


def of_constraint(**given: Any) -> dict[str, Any]:
    """Convert and check the settings of a constraint.

    Raises:
        ValueError: also for what cannot be next to a mu that is found.
    """
    found = settled("ALMConstraint", given, LIMITS)
    off = {"every": 1, "filter": None, "rules": ()}
    taken = [name for name in off if found["mu"] == "auto" and found[name] != off[name]]
    if taken:
        raise ValueError(
            f"ALMConstraint: mu='auto' found {taken[0]}={given[taken[0]]!r}, and has a cadence, a "
            "mean and a guard against wind-up of its own: they would act twice. Did you mean to "
            f"leave `{taken[0]}` out, or a number for mu?"
        )
    return found
