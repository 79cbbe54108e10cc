"""The terms of a constraint: the settings it was made with, and what follows from them."""

import math
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, Protocol, TypeAlias

from torch_alm._control import numbers
from torch_alm._control.growth import PenaltyGrowth
from torch_alm._control.numbers import Number, Truth
from torch_alm._control.release import Release
from torch_alm._control.smoothing import Smoothing

Given: TypeAlias = Mapping[str, Any]


class Threshold(Protocol):
    """Which side of what is satisfied."""

    @property
    def alpha(self) -> Number: ...

    @property
    def sense(self) -> str: ...


class Terms(Threshold, Protocol):
    """What the parts of a constraint need to know of its settings."""

    mu: float
    every: int
    window: int
    deadband: float
    ema: float
    warmup: int
    tolerance: float
    max_multiplier: float | None
    hold: float | None
    release: Release | None
    growth: PenaltyGrowth | None
    total_steps: int | None
    nonfinite: Any


def is_equality(terms: Threshold) -> bool:
    """Whether both sides of alpha are violations."""
    return terms.sense == "=="


def smoothing(terms: Terms) -> Smoothing:
    """How violations are filtered."""
    return Smoothing(terms.window, terms.deadband, terms.ema, terms.sense == "==")


def signed(terms: Threshold, value: Number) -> Number:
    """The violation c, positive where the constraint is not met."""
    return value - terms.alpha if terms.sense == "<=" else terms.alpha - value


def is_met(terms: Terms, c: Number) -> Truth:
    """Whether the violation is at most the tolerance."""
    return (abs(c) if terms.sense == "==" else c) <= terms.tolerance


def is_met_everywhere(terms: Terms, c: Number) -> bool:
    """In every entry that was ever measured, and in one at least."""
    return numbers.any_of(c == c) and not numbers.any_of((c == c) & (is_met(terms, c) == 0))


def check(given: Given) -> None:
    """Raise `ValueError` for the first setting that makes no sense, and say what it may be."""
    for name, (holds, rule) in RULES.items():
        if not holds(given):
            raise ValueError(
                f"ALMConstraint: {name} is {given[name]!r}; it must be {rule}. Are the arguments "
                "in the order (measure, alpha, mu)?"
            )


def _multiplier(given: Given) -> bool:
    multiplier = given["multiplier"]
    return numbers.is_finite(multiplier) and (
        given["sense"] == "==" or not numbers.any_of(multiplier < 0)
    )


def _deadband(given: Given) -> bool:
    deadband = given["deadband"]
    return deadband == 0 or (0 < deadband < math.inf and given["window"] >= 2)


def _ema(given: Given) -> bool:
    return given["ema"] == 0 or (0 < given["ema"] < 1 and given["window"] == 1)


def _count(name: str, least: int) -> Callable[[Given], bool]:
    return lambda given: isinstance(given[name], Integral) and given[name] >= least


def _optional(name: str, holds: Callable[[float], bool]) -> Callable[[Given], bool]:
    return lambda given: given[name] is None or holds(given[name])


RULES: dict[str, tuple[Callable[[Given], bool], str]] = {
    "alpha": (lambda given: numbers.is_finite(given["alpha"]), "a finite threshold"),
    "mu": (lambda given: 0 <= given["mu"] < math.inf, "at least 0 (0 fixes the multiplier)"),
    "sense": (lambda given: given["sense"] in (">=", "<=", "=="), '">=", "<=" or "=="'),
    "multiplier": (_multiplier, 'finite, and at least 0 for ">=" and "<="'),
    "every": (_count("every", 1), "a number of steps, at least 1"),
    "window": (_count("window", 1), "a number of steps, at least 1"),
    "deadband": (_deadband, "at least 0, and needs a window of 2 steps or more"),
    "ema": (_ema, "at least 0, below 1, and without a window: they are two ways to one mean"),
    "warmup": (_count("warmup", 0), "a number of steps, at least 0"),
    "tolerance": (lambda given: 0 <= given["tolerance"] < math.inf, "at least 0"),
    "max_multiplier": (_optional("max_multiplier", lambda limit: limit > 0), "positive, or None"),
    "hold": (_optional("hold", lambda share: 0 < share <= 1), "above 0 and at most 1, or None"),
    "release": (
        lambda given: given["release"] is None or given["sense"] != "==",
        'None for "==": an equality has no side on which it could be left alone',
    ),
    "total_steps": (_optional("total_steps", lambda steps: steps >= 1), "at least 1, or None"),
    "nonfinite": (lambda given: given["nonfinite"] in ("skip", "raise"), '"skip" or "raise"'),
}
