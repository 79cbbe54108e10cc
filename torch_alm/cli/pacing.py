"""The pace of a run, and its end: measured numbers in, a rate and a decision out."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

Decision: TypeAlias = Literal["go on", "ask", "give up"]

EVERY = 10  # steps between two checks
FACTOR = 2.0  # by which the rate rises and falls
MOST = 1e-2  # rate: beyond it AdamW breaks what it shall keep, and a vanishing gradient stays one
PROGRESS = 0.05  # of the level: less between two checks is none
HELD = 2  # checks in a row that have to pass before the model is asked
PATIENCE = 25  # checks without a smaller gap, and the run is given up
SMALLER = 0.01  # by how much a gap has to shrink to be a smaller one


@dataclass
class Pacing:
    """The rule of a run whose rate nobody gave.

    At every check: a retain loss above its limit, unless it falls, halves the rate; a level that is
    reached keeps it; a forget value that rose by less than a twentieth of the level doubles it, to
    0.01 at most. Once the level is reached and the retain loss within its limit at two checks in a
    row, the model is to be asked, and after each time that it fails, at twice as many. The gap is
    what is missing of the level, as a share of it, plus what the retain loss has too much, in nats;
    25 checks without a smaller one, or a number that is not finite, and the run is given up.

    Args:
        alpha: the level that the forget value shall reach.
        limit: the most that the retain loss may be.
        rate: the first learning rate.
        fixed: whether the rate stays as it is; the run is not given up then.

    Attributes:
        value: the forget value of the latest check.
        kept: its retain loss.
        needed: checks in a row that have to pass before the model is asked.
        held: how many have.
        gap: the smallest so far.
        stalled: checks since then.
    """

    alpha: float
    limit: float
    rate: float
    fixed: bool = False
    value: float = 0.0
    kept: float = 0.0
    needed: int = HELD
    held: int = 0
    gap: float = math.inf
    stalled: int = 0

    def check(self, value: float, kept: float) -> Decision:
        """Take in the forget value and the retain loss, set the rate, and decide."""
        gained, lost = value - self.value, kept - self.kept
        self.value, self.kept = value, kept
        if not self.is_kept:
            if not lost < 0:  # a retain loss that falls needs the rate that brings it down
                self._change(1 / FACTOR)
        elif value < self.alpha and gained < PROGRESS * self.alpha:
            self._change(FACTOR)
        self.held = self.held + 1 if self.is_kept and value >= self.alpha else 0
        if self.held >= self.needed:
            return "ask"
        return "give up" if self._is_stalled() else "go on"

    @property
    def is_kept(self) -> bool:
        """True if the retain loss is within its limit; one that is NaN is not."""
        return self.kept <= self.limit

    def failed(self) -> None:
        """Take in that the model was asked, and the goal not met: ask half as often."""
        self.held, self.needed = 0, 2 * self.needed

    def state(self) -> dict[str, Any]:
        """All numbers, for `load`."""
        return asdict(self)

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`; where the limit is another by now, the checks are counted anew."""
        limit = self.limit
        self.__init__(**state)
        if limit != self.limit:
            self.__init__(self.alpha, limit, self.rate, self.fixed, self.value, self.kept)

    def _change(self, factor: float) -> None:
        if not self.fixed:
            self.rate = min(self.rate * factor, MOST)

    def _is_stalled(self) -> bool:
        if not math.isfinite(self.value + self.kept):
            return True
        gap = max(0.0, 1 - self.value / self.alpha) + max(0.0, self.kept - self.limit)
        is_smaller = gap < self.gap - SMALLER
        self.gap = min(gap, self.gap) if is_smaller else self.gap
        self.stalled = 0 if is_smaller else self.stalled + 1
        return self.stalled >= PATIENCE and not self.fixed
