"""Whether a constraint looks out of reach: pressure grows, and the violation does not go."""

from collections.abc import Mapping
from typing import Any

import torch

from torch_alm._control import numbers
from torch_alm._control.numbers import Number

STEPS = 64  # violated steps before the first stretch: a run that short says nothing
UPDATES = 8  # and multiplier updates
SHARE = 0.9  # above this share of the last stretch's mean violation, a stretch made no progress
MEMORY = ("end", "count", "total", "mean", "is_stalled")


class Stall:
    """Compares two stretches of steps violated to the same side, the second twice as long.

    The multiplier integrates the violation, so over the second stretch it about doubles. If the
    mean violation is not a tenth smaller by then, more pressure does not help. Of a vector, the
    entry counts that has been violated longest.
    """

    def __init__(self) -> None:
        """Start with nothing violated."""
        self._run: Number = 0.0  # steps in a row violated to the same side
        self._side: Number = 0.0
        self._restart()

    def _restart(self) -> None:
        self.end = self.count = self.total = self.mean = 0.0
        self.is_stalled = False

    def expand(self, size: torch.Size) -> None:
        """One run per entry."""
        self._run = numbers.expanded(self._run, size)
        self._side = numbers.expanded(self._side, size)

    def state(self) -> dict[str, Any]:
        """Everything remembered, sharing no memory."""
        runs = {"run": numbers.copied(self._run), "side": numbers.copied(self._side)}
        return {**runs, **{name: getattr(self, name) for name in MEMORY}}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`, sharing no memory with it."""
        self._run, self._side = numbers.copied(state["run"]), numbers.copied(state["side"])
        for name in MEMORY:
            setattr(self, name, state[name])

    def watch(self, excess: Number, every: int) -> None:
        """Take in one step.

        Args:
            excess: the violation where it is one that the multiplier is free to push against (for
                an equality with its sign), 0 elsewhere.
            every: steps per update of the multiplier.
        """
        before = numbers.largest(self._run)
        self._count(excess)
        run, first = numbers.largest(self._run), max(STEPS, UPDATES * every)
        if run <= before and before > 0:
            self._restart()
        if self.end == 0:  # where an entry takes over, its first stretch begins there
            self.end = 2.0 * max(run, first)
        if run <= first:
            return
        self.count += 1
        self.total += numbers.largest(abs(numbers.choose(self._run >= run, excess, 0.0)))
        if run >= self.end:
            self._finish()

    def _count(self, excess: Number) -> None:
        """One more step for entries violated to the side they were, the first for others."""
        side = numbers.choose(excess > 0, 1.0, numbers.choose(excess < 0, -1.0, 0.0))
        is_same = (side != 0) & (side == self._side)
        self._run = numbers.choose(is_same, self._run + 1, abs(side))
        self._side = side

    def _finish(self) -> None:
        """Compare the stretch that ends here with the last one, and begin one twice as long."""
        mean = self.total / self.count
        self.is_stalled = 0 < SHARE * self.mean < mean
        self.mean, self.count, self.total = mean, 0.0, 0.0
        self.end *= 2
