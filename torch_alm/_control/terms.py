"""The terms of a constraint: the settings it was made with, and what follows from them."""

from typing import Literal, SupportsIndex, TypeAlias

import torch

from torch_alm._control import numbers
from torch_alm._control.growth import PenaltyGrowth
from torch_alm._control.numbers import Number, Numeric, Truth
from torch_alm._control.release import Release
from torch_alm._control.settings import Setting, Settled
from torch_alm._control.smoothing import Smoothing

Sense: TypeAlias = Literal[">=", "<=", "=="]
Policy: TypeAlias = Literal["skip", "raise"]


class Terms(Settled):
    """What the parts of a constraint need to know of its settings."""

    alpha = Setting[Number, Numeric]()
    mu = Setting[float, Numeric]()
    sense = Setting[Sense, Sense]()
    every = Setting[int, SupportsIndex]()
    window = Setting[int, SupportsIndex]()
    deadband = Setting[float, Numeric]()
    ema = Setting[float, Numeric]()
    warmup = Setting[int, SupportsIndex]()
    tolerance = Setting[float, Numeric]()
    max_multiplier = Setting[float | None, Numeric | None]()
    hold = Setting[float | None, Numeric | None]()
    release = Setting[Release | None, Release | None]()
    total_steps = Setting[int | float | None, Numeric | None]()
    nonfinite = Setting[Policy, Policy]()
    growth: PenaltyGrowth | None


def is_equality(terms: Terms) -> bool:
    """Whether both sides of alpha are violations."""
    return terms.sense == "=="


def smoothing(terms: Terms) -> Smoothing:
    """How violations are filtered."""
    return Smoothing(terms.window, terms.deadband, terms.ema, terms.sense == "==")


def signed(terms: Terms, value: Number, dtype: torch.dtype | None = None) -> Number:
    """The violation c of a value measured in this type, positive where it is not met."""
    return beyond(terms.alpha, terms.sense, value, dtype)


def beyond(alpha: Number, sense: str, value: Number, dtype: torch.dtype | None) -> Number:
    """How far a value is on the wrong side of alpha, as the measurement's type has it.

    A float32 that equals alpha, rounded to float32, is no violation.
    """
    alpha = numbers.rounded(alpha, dtype)
    return value - alpha if sense == "<=" else alpha - value


def is_met(terms: Terms, c: Number) -> Truth:
    """Whether the violation is at most the tolerance."""
    return (abs(c) if terms.sense == "==" else c) <= terms.tolerance


def is_met_everywhere(terms: Terms, c: Number) -> bool:
    """In every entry that was ever measured, and in one at least."""
    return numbers.any_of(c == c) and not numbers.any_of((c == c) & (is_met(terms, c) == 0))
