"""The settings of a constraint: what each is converted to, and what it may be."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, overload

from torch_alm._control import numbers

Given: TypeAlias = Mapping[str, Any]
Held = TypeVar("Held")
Taken = TypeVar("Taken")


class Settled:
    """An object whose settings are converted and checked whenever they are assigned."""

    def _settle(self, given: Given) -> None:
        """Take over new settings next to those there are: all of them, or none."""
        raise NotImplementedError


class Setting(Generic[Held, Taken]):
    """An attribute that holds one type and takes all that can be converted to it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "Setting[Held, Taken]": ...

    @overload
    def __get__(self, instance: object, owner: type) -> Held: ...

    def __get__(self, instance: object, owner: type) -> Any:
        return self if instance is None else instance.__dict__[self._name]

    def __set__(self, instance: Settled, value: Taken) -> None:
        instance._settle({self._name: value})  # pyright: ignore[reportPrivateUsage]


def converted(given: Given) -> dict[str, Any]:
    """Numbers as those of Python or, several in one, a float64 tensor on the host."""
    return {name: numbers.tried(RULES[name].convert, value) for name, value in given.items()}


def check(given: Given) -> None:
    """Raise `ValueError` for the first setting that makes no sense, and say what it may be."""
    for name, (_, holds, rule) in RULES.items():
        if not holds(given):
            raise ValueError(
                f"ALMConstraint: {name} is {given[name]!r}; it must be {rule}. Are the arguments "
                "in the order (measure, alpha, mu)?"
            )


class Rule(NamedTuple):
    """How a setting is converted, whether it makes sense next to the others, and in words."""

    convert: Callable[[Any], object]
    holds: Callable[[Given], bool]
    words: str


def _multiplier(given: Given) -> bool:
    multiplier = given["multiplier"]
    return numbers.is_number(multiplier) and (
        given["sense"] == "==" or not numbers.any_of(multiplier < 0)
    )


def _deadband(given: Given) -> bool:
    return _is_below(given["deadband"], math.inf) and (
        given["deadband"] == 0 or given["window"] >= 2
    )


def _ema(given: Given) -> bool:
    return _is_below(given["ema"], 1) and (given["ema"] == 0 or given["window"] == 1)


def _is_below(value: object, limit: float) -> bool:
    """Whether it is a number, at least 0 and below the limit."""
    return isinstance(value, (int, float)) and 0 <= value < limit


def _same(value: object) -> object:
    return value


def _optional(convert: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda value: None if value is None else convert(value)


def _count(name: str, least: int) -> Rule:
    return Rule(
        numbers.whole,
        lambda given: isinstance(given[name], int) and given[name] >= least,
        f"a number of steps, at least {least}",
    )


def _not_negative(name: str, words: str = "at least 0") -> Rule:
    return Rule(numbers.single, lambda given: _is_below(given[name], math.inf), words)


def _between(
    name: str,
    holds: Callable[[float], bool],
    words: str,
    convert: Callable[[Any], object] = numbers.single,
) -> Rule:
    def passes(given: Given) -> bool:
        value = given[name]
        return value is None or (isinstance(value, (int, float)) and holds(value))

    return Rule(_optional(convert), passes, words)


RULES: dict[str, Rule] = {
    "alpha": Rule(
        numbers.host, lambda given: numbers.is_number(given["alpha"]), "a finite threshold"
    ),
    "mu": _not_negative("mu", "at least 0 (0 fixes the multiplier)"),
    "sense": Rule(_same, lambda given: given["sense"] in (">=", "<=", "=="), '">=", "<=" or "=="'),
    "multiplier": Rule(numbers.host, _multiplier, 'finite, and at least 0 for ">=" and "<="'),
    "every": _count("every", 1),
    "window": _count("window", 1),
    "deadband": Rule(
        numbers.single, _deadband, "at least 0, and needs a window of 2 steps or more"
    ),
    "ema": Rule(
        numbers.single,
        _ema,
        "at least 0, below 1, and without a window: they are two ways to one mean",
    ),
    "warmup": _count("warmup", 0),
    "tolerance": _not_negative("tolerance"),
    "max_multiplier": _between("max_multiplier", lambda limit: limit > 0, "positive, or None"),
    "hold": _between("hold", lambda share: 0 < share <= 1, "above 0 and at most 1, or None"),
    "release": Rule(
        _same,
        lambda given: given["release"] is None or given["sense"] != "==",
        'None for "==": an equality has no side on which it could be left alone',
    ),
    "total_steps": _between(
        "total_steps", lambda steps: steps >= 1, "at least 1, or None", numbers.steps
    ),
    "nonfinite": Rule(
        _same, lambda given: given["nonfinite"] in ("skip", "raise"), '"skip" or "raise"'
    ),
}
