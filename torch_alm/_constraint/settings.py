"""The bases of filters and rules, and the table that checks all settings."""

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

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
    """A pair of functions that turns noisy violations into the one that counts.

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

        The base begins anew, as it does not know the form of the memory.
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
        """Return whether, after so many steps, mu acts as 0 and nothing is updated."""
        return False

    def is_limiting(self, multiplier: Number) -> bool:
        """Return whether some stored multiplier is at a limit of this rule."""
        return False


class Limit(NamedTuple):
    """The conversion of a setting, a check of it beside those before it, and the same in words."""

    convert: Callable[[Any], Any]
    holds: Callable[[Any, Given], bool]
    words: str


def convert_settings(
    owner: str, given: Given, limits: Mapping[str, Limit], question: str = ""
) -> dict[str, Any]:
    """Convert settings to numbers of Python or float64 tensors on the host.

    Raises:
        ValueError: for the first that makes no sense; it says what it may be.
    """
    found = dict[str, Any]()
    for name, (convert, holds, words) in limits.items():
        try:
            found[name] = convert(given[name])
            is_right = holds(found[name], found)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            is_right = False
        if not is_right:
            raise ValueError(f"{owner}: {name} is {given[name]!r}; it must be {words}.{question}")
    return found


def settle(owner: Filter | Rule, **limits: Limit) -> None:
    """Convert and check the fields of a filter or rule."""
    name = type(owner).__name__
    question = f" Did you mean to leave `{name}` out?"
    vars(owner).update(convert_settings(name, vars(owner), limits, question))


def number(holds: Callable[[float], bool], words: str) -> Limit:
    """Make the limit of one number."""
    return Limit(numbers.to_float, lambda value, _: holds(value), words)


def count(least: int) -> Limit:
    """Make the limit of a number of steps; 3.0 is none."""
    words = f"a number of steps, at least {least}"
    return Limit(operator.index, lambda value, _: value >= least, words)


def one_of(*words: str) -> Limit:
    """Make the limit of a word."""
    return Limit(_same, lambda value, _: value in words, " or ".join(f'"{w}"' for w in words))


def _same(value: object) -> object:
    return value


def _is_alpha(value: Number, _: Given) -> bool:
    return numbers.shape(value).numel() > 0 and numbers.is_finite(value)


def _is_multiplier(value: Number, before: Given) -> bool:
    size, other = numbers.shape(value), numbers.shape(before["alpha"])
    fits = size == other or () in (size, other)
    is_signed = before["sense"] == "=="
    return fits and _is_alpha(value, before) and (is_signed or not numbers.any_of(value < 0))


def _is_mu(value: float | str, _: Given) -> bool:
    return value == "auto" or (isinstance(value, float) and 0 <= value < math.inf)


def _are_rules(value: tuple[object, ...], before: Given) -> bool:
    return all(isinstance(rule, Rule) and before["sense"] in rule.senses for rule in value)


LIMITS: dict[str, Limit] = {
    "measure": Limit(
        _same,
        lambda value, _: value is None or callable(value),
        "a function of what the constraint is called with, or None",
    ),
    "alpha": Limit(numbers.to_host, _is_alpha, "a finite threshold"),
    "mu": Limit(
        lambda mu: mu if isinstance(mu, str) else numbers.to_float(mu),
        _is_mu,
        'at least 0 (0 fixes the multiplier), or "auto"',
    ),
    "sense": one_of(">=", "<=", "=="),
    "multiplier": Limit(
        numbers.to_host,
        _is_multiplier,
        'finite, one number or one per entry of alpha, and at least 0 for ">=" and "<="',
    ),
    "every": count(1),
    "filter": Limit(
        _same,
        lambda value, _: value is None or isinstance(value, Filter),
        "None or a filter, such as torch_alm.filters.Mean(8)",
    ),
    "rules": Limit(
        tuple,
        _are_rules,
        "a list of rules, such as [torch_alm.rules.Leak(0.5)], each for this sense (an equality "
        "has no side on which it could be left alone)",
    ),
    "tolerance": number(lambda value: 0 <= value < math.inf, "at least 0"),
    "nonfinite": one_of("skip", "raise"),
}
OBSERVED: dict[str, Limit] = {
    "value": Limit(
        lambda value: float(value) if isinstance(value, float) else numbers.to_tensor(value),
        lambda value, _: isinstance(value, float) or not value.is_complex(),
        "a number, several in a list, or a tensor of them",
    ),
    "weight": number(lambda value: 0 < value < math.inf, "positive: its share in the step's mean"),
}


def settle_constraint(**given: Any) -> dict[str, Any]:
    """Convert and check the settings of a constraint.

    Raises:
        ValueError: also for what cannot be next to a mu that is found.
    """
    found = convert_settings("ALMConstraint", given, LIMITS)
    off = {"every": 1, "filter": None, "rules": ()}
    taken = [name for name in off if found["mu"] == "auto" and found[name] != off[name]]
    if taken:
        raise ValueError(
            f"ALMConstraint: mu='auto' found {taken[0]}={given[taken[0]]!r}, and has a cadence, a "
            "mean and a guard against wind-up of its own: they would act twice. Did you mean to "
            f"leave `{taken[0]}` out, or a number for mu?"
        )
    return found


def settle_observation(value: object, weight: object) -> tuple[Any, float]:
    """Convert and check a measured value, and its share in the mean of a step."""
    found = convert_settings("ALMConstraint.observe", {"value": value, "weight": weight}, OBSERVED)
    return found["value"], found["weight"]
