"""What a constraint has seen so far: counts, and stretches of steps that made no progress."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Size

from torch_alm._constraint import numbers
from torch_alm._constraint.numbers import Mask, Number
from torch_alm._constraint.settings import Sense

STEPS = 64  # violated steps before the first stretch: a run that short says nothing
UPDATES = 8  # and multiplier updates
SHARE = 0.9  # above this share of the last stretch's mean violation, a stretch made no progress
GROWTH = 10.0  # of the weight in the stretch that follows


class Stateful:
    """An object all of whose attributes are its state.

    Attributes:
        PER_ENTRY: those that are one number per multiplier.
    """

    PER_ENTRY: ClassVar[tuple[str, ...]] = ()

    def state(self) -> dict[str, Any]:
        """Return everything remembered, sharing no memory; nothing of a part that is not there."""
        return {
            name: value.state() if isinstance(value, Stateful) else numbers.kept(value)
            for name, value in vars(self).items()
            if value is not None
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`, sharing no memory with it."""
        for name, value in vars(self).items():
            if isinstance(value, Stateful):
                value.load(state[name])
            elif value is not None:
                setattr(self, name, numbers.kept(state[name]))

    def expand(self, size: Size) -> None:
        """Keep one number per entry."""
        for name in self.PER_ENTRY:
            setattr(self, name, numbers.expanded(getattr(self, name), size))
        for value in vars(self).values():
            if isinstance(value, Stateful):
                value.expand(size)


class History(Stateful):
    """The past of a constraint: steps, open gates, skipped measurements, the furthest overshoot."""

    PER_ENTRY = ("visits", "met_for", "overshoot", "first")

    def __init__(self) -> None:
        self.steps = 0
        self.visits: Number = 0.0  # of these, the steps that measured an entry
        self.active_steps = 0
        self.skipped = 0
        self.is_blind = False  # the latest step saw nothing finite
        self.met_for: Number = 0.0  # steps in a row
        self.overshoot: Number = 0.0
        self.first: Number = math.nan  # an equality overshoots to the side it did not come from

    def step(self, c: Number, weight: Number, seen: Mask, met: Mask, sense: Sense) -> None:
        """Count a step with the violation c and the weight that acted."""
        self.steps += 1
        self.active_steps += numbers.any_of(weight != 0)
        self.is_blind = not numbers.any_of(seen)
        self.visits = self.visits + 1.0 * seen
        self.met_for = numbers.choose(seen, (self.met_for + 1) * met, self.met_for)
        beyond = -c
        if sense == "==":
            side = numbers.choose(c > 0, 1.0, numbers.choose(c < 0, -1.0, math.nan))
            self.first = numbers.choose(self.first == self.first, self.first, side)
            beyond = beyond * self.first
        self.overshoot = numbers.choose(beyond > self.overshoot, beyond, self.overshoot)


class Stall(Stateful):
    """Comparison of two stretches of steps violated to the same side, the second twice as long.

    The multiplier integrates the violation, so over the second stretch it about doubles. If the
    mean violation is not a tenth smaller by then, although the weight is a tenth larger, more
    pressure does not help. Each entry of a vector has stretches of its own, of the steps that
    measured it.

    Attributes:
        limit: 0, or after a stretch without progress ten times the weight at its end. A multiplier
            whose mu is found grows by shares of itself, and may grow so far until the next stretch
            ends. It is not stopped for good: where alpha, the data or the optimizer's moments have
            only begun to move, a violation that stays says little.
    """

    OF_STRETCHES = ("end", "count", "total", "mean", "weight", "limit")
    PER_ENTRY = ("run", "side", "level", *OF_STRETCHES)

    def __init__(self) -> None:
        self.run: Number = 0.0  # steps in a row violated to the same side
        self.side: Number = 0.0
        self.level: Number = math.nan  # the alpha that it was about
        self.end: Number = 0.0  # of the stretch, in such steps; 0 before the first
        self.count: Number = 0.0
        self.total: Number = 0.0
        self.mean: Number = 0.0  # violation of the last stretch
        self.weight: Number = 0.0  # at its end
        self.limit: Number = 0.0

    @property
    def is_stalled(self) -> bool:
        """Tell whether the latest stretch of some entry made no progress."""
        return numbers.any_of(self.limit > 0)

    def watch(self, excess: Number, seen: Mask, every: int, weight: Number, alpha: Number) -> None:
        """Take in one step.

        Args:
            seen: where there is a violation of this step; elsewhere all stays as it is.
            excess: the violation where it is one that the multiplier is free to push against (for
                an equality with its sign), 0 elsewhere.
            every: steps per update of the multiplier.
            weight: lambda+ of the step.
            alpha: the level, of which a new one begins a new run.
        """
        side = numbers.choose(excess > 0, 1.0, numbers.choose(excess < 0, -1.0, 0.0))
        # else this step is the first, or none
        is_same = (side != 0) & (side == self.side) & (alpha == self.level)
        now = {
            "run": numbers.choose(is_same, self.run + 1, abs(side)),
            "side": side,
            "level": alpha + 0.0 * side,
        }
        self._take(now, seen)
        is_over = seen & (self.run <= 1) & (self.end > 0)
        if numbers.any_of(is_over):
            self._take(dict.fromkeys(self.OF_STRETCHES, 0.0), is_over)
        first = max(STEPS, UPDATES * every)
        is_long = seen & (self.run > first)
        if numbers.any_of(is_long):
            self.end = numbers.choose(is_long & (self.end == 0), 2.0 * first, self.end)
            self.count = self.count + is_long
            self.total = self.total + numbers.choose(is_long, abs(excess), 0.0)
            self._compare(is_long & (self.run >= self.end), abs(weight))

    def _compare(self, ends: Mask, weight: Number) -> None:
        """Compare a stretch that ends with the last, and double the next."""
        if not numbers.any_of(ends):
            return
        mean = self.total / self.count
        is_stuck = (self.mean > 0) & (mean > SHARE * self.mean) & (SHARE * weight > self.weight)
        limit = numbers.choose(is_stuck, GROWTH * weight, 0.0)
        anew = {"count": 0.0, "total": 0.0, "end": 2 * self.end}
        self._take({"limit": limit, "mean": mean, "weight": weight, **anew}, ends)

    def _take(self, now: Mapping[str, Number], where: Mask) -> None:
        """Replace numbers there, and keep what they were elsewhere."""
        for name, number in now.items():
            setattr(self, name, numbers.choose(where, number, getattr(self, name)))
