"""The violation that counts: a mean over the last steps, cut where it is within the noise."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_alm._control import numbers
from torch_alm._control.numbers import Number, Truth

TINY = torch.finfo(torch.float64).tiny


class Smoothing(NamedTuple):
    """How violations are filtered: over how many steps, and how much of the noise is cut."""

    window: int
    deadband: float
    ema: float
    is_equality: bool

    @property
    def is_on(self) -> bool:
        """Whether the newest violation is anything but taken as it is."""
        return self.window > 1 or self.ema > 0


class Filter:
    """The violations of each entry so far, as much of them as the smoothing needs.

    Entries that were not seen in a step keep what they had. With no smoothing nothing is kept.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._history: Any = []  # oldest first: floats, or a tensor with `nan` for none yet
        self._mean: Number = 0.0
        self._mass: Number = 0.0

    def copy(self) -> "Filter":
        """The same, sharing no memory."""
        other = Filter()
        other.load(self.state())
        return other

    def state(self) -> dict[str, Any]:
        """Everything kept, sharing no memory."""
        history = self._history
        return {
            "history": history.clone() if isinstance(history, Tensor) else list(history),
            "mean": numbers.copied(self._mean),
            "mass": numbers.copied(self._mass),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`, sharing no memory with it."""
        history = state["history"]
        self._history = history.clone() if isinstance(history, Tensor) else list(history)
        self._mean, self._mass = numbers.copied(state["mean"]), numbers.copied(state["mass"])

    def push(self, c: Number, seen: Truth, smoothing: Smoothing) -> Number:
        """Take in this step's violations and return the filtered ones."""
        if smoothing.ema > 0:
            return self._averaged(c, seen, smoothing.ema)
        if smoothing.window == 1:
            self._history = []
            return c
        if isinstance(c, Tensor):
            self._history = self._shifted(c, seen, smoothing.window)
            return _cut(self._history, smoothing)
        self._history = [*self._history, c] if seen else list(self._history)
        self._history = self._history[-smoothing.window :]
        return _cut_of_floats(self._history, smoothing)

    def _shifted(self, c: Tensor, seen: Truth, window: int) -> Tensor:
        """The history with `c` at its end, moved on only where `c` was seen."""
        nothing = torch.full((window, *c.shape), math.nan, dtype=torch.float64)
        held = torch.cat([nothing, self._history])[-window:] if len(self._history) else nothing
        return torch.where(torch.as_tensor(seen), torch.cat([held[1:], c[None]]), held)

    def _averaged(self, c: Number, seen: Truth, decay: float) -> Number:
        """The exponential mean, divided by the weights it holds so far."""
        mean = decay * self._mean + (1 - decay) * c
        mass = decay * self._mass + (1 - decay)
        self._mean = numbers.choose(seen, mean, self._mean)
        self._mass = numbers.choose(seen, mass, self._mass)
        if isinstance(self._mean, Tensor):
            return self._mean / self._mass
        return self._mean / self._mass if self._mass else math.nan


def _cut(history: Tensor, smoothing: Smoothing) -> Tensor:
    """Mean over dim 0, without what may be noise on the side where the constraint is not met."""
    mean = history.nanmean(0)
    if smoothing.deadband == 0:
        return mean
    count = (~history.isnan()).sum(0)
    deviations = torch.where(history.isnan(), torch.zeros_like(history), history - mean)
    unit = deviations.abs().amax(0).clamp(min=TINY)  # squares of it would overflow
    spread = unit * (deviations / unit).square().sum(0).sqrt()
    noise = smoothing.deadband * spread / ((count - 1).clamp(min=1) * count).double().sqrt()
    if smoothing.is_equality:
        return mean.sign() * (mean.abs() - noise).clamp(min=0)
    return torch.maximum(mean - noise, mean.clamp(max=0))


def _cut_of_floats(history: list[float], smoothing: Smoothing) -> float:
    """The same for one entry."""
    count = len(history)
    if not count:
        return math.nan
    mean = sum(history) / count
    if smoothing.deadband == 0 or (mean <= 0 and not smoothing.is_equality):
        return mean
    unit = max(TINY, *(abs(c - mean) for c in history))
    spread = unit * math.sqrt(sum(((c - mean) / unit) ** 2 for c in history))
    noise = smoothing.deadband * spread / math.sqrt(max(count - 1, 1) * count)
    return math.copysign(max(abs(mean) - noise, 0.0), mean)
