"""A watch for constraints out of reach: pressure grows, and the violation does not go."""

import math

from torch_alm._constraint import numbers
from torch_alm._constraint.numbers import Mask, Number
from torch_alm._constraint.stateful import Stateful

STEPS = 64  # violated steps before the first stretch: a run that short says nothing
UPDATES = 8  # and multiplier updates
SHARE = 0.9  # above this share of the last stretch's mean violation, a stretch made no progress
GROWTH = 10.0  # of the weight in the stretch that follows


class Stall(Stateful):
    """Comparison of two stretches of steps violated to the same side, the second twice as long.

    The multiplier integrates the violation, so over the second stretch it about doubles. If the
    mean violation is not a tenth smaller by then, more pressure does not help. Each entry of a
    vector has stretches of its own.

    Attributes:
        limit: 0, or after a stretch without progress ten times the weight at its end. A multiplier
            whose mu is found grows by shares of itself, and may grow so far until the next stretch
            ends. It is not stopped for good: where alpha, the data or the optimizer's moments have
            only begun to move, a violation that stays says little.
    """

    OF_STRETCHES = ("end", "count", "total", "mean", "limit")
    PER_ENTRY = ("run", "side", "level", *OF_STRETCHES)

    def __init__(self) -> None:
        self.run: Number = 0.0  # steps in a row violated to the same side
        self.side: Number = 0.0
        self.level: Number = math.nan  # the alpha that it was about
        self.end: Number = 0.0  # of the stretch, in such steps; 0 before the first
        self.count: Number = 0.0
        self.total: Number = 0.0
        self.mean: Number = 0.0
        self.limit: Number = 0.0

    @property
    def is_stalled(self) -> bool:
        """Tell whether the latest stretch of some entry made no progress."""
        return numbers.any_of(self.limit > 0)

    def watch(self, excess: Number, every: int, weight: Number, alpha: Number) -> None:
        """Take in one step.

        Args:
            excess: the violation where it is one that the multiplier is free to push against (for
                an equality with its sign), 0 elsewhere.
            every: steps per update of the multiplier.
            weight: lambda+ of the step.
            alpha: the level, of which a new one begins a new run.
        """
        side = numbers.choose(excess > 0, 1.0, numbers.choose(excess < 0, -1.0, 0.0))
        # else this step is the first, or none
        is_same = (side != 0) & (side == self.side) & (alpha == self.level)
        self.run, self.side = numbers.choose(is_same, self.run + 1, abs(side)), side
        self.level = alpha + 0.0 * side
        is_over = (self.run <= 1) & (self.end > 0)
        if numbers.any_of(is_over):
            for name in self.OF_STRETCHES:
                setattr(self, name, numbers.choose(is_over, 0.0, getattr(self, name)))
        first = max(STEPS, UPDATES * every)
        is_long = self.run > first
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
        is_stuck = (self.mean > 0) & (mean > SHARE * self.mean)
        limit = numbers.choose(is_stuck, GROWTH * weight, 0.0)
        now = {"limit": limit, "mean": mean, "end": 2 * self.end, "count": 0.0, "total": 0.0}
        for name, number in now.items():
            setattr(self, name, numbers.choose(ends, number, getattr(self, name)))
