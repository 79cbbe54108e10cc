"""The share of a finished forget step to make: as much as ends the violation, noise left aside.

Where the share s of the forget step is made, the violation c falls to first order by f = s G - d:
G is what all of that step takes off, d what the retain step adds. Of such a fall a share `reach`
comes true, less than all of it where a measure flattens out, and what c says of it is noisy:

    error = c - (level - reach f)                    with f of the step before
    noise = E (c - 2 c_before + c_before_that)^2 / 6     the variance, were c nothing but noise
    K     = clip(1 - noise / E error^2, 1/20, 1)                                (Kalman 1960)
    level <- level - reach f + K error
    s     = clip((level / reach + d) / G, 0, limit)

E is over the last five steps or so. No constant has a unit.
"""

import math

from torch_alm._constraint.auto import EVERY, TINY
from torch_alm._constraint.response import Sides
from torch_alm._constraint.stateful import Stateful

LEAST, NEW, RECENT = 0.02, 0.3, 5


class Aim(Stateful):
    """The memory of what was foretold, and of what came of it.

    Attributes:
        reach: the share of a foretold fall that c makes.
        foretold: f of the last step; 0 unless that was aimed.
        ahead: d of the last step if that was aimed and adds to c; else 0.
        level: c without its noise.
        before: c of the last step.
        moved: by how much c had moved then.
        square: E error^2.
        noise: the variance of what may be noise.
        count: of the steps seen.
    """

    def __init__(self) -> None:
        """Start with nothing foretold; what is foretold first is believed."""
        self.reach, self.foretold, self.ahead = 1.0, 0.0, 0.0
        self.level = self.before = self.moved = self.square = self.noise = 0.0
        self.count = 0

    def see(self, c: float) -> None:
        """Compare c with what was foretold."""
        moved = c - self.before if self.count else 0.0
        turned = moved - self.moved
        error = c - (self.level - self.reach * self.foretold)
        if self.count > 1:
            recent = 1 / min(self.count - 1, RECENT)
            self.square += recent * (error * error - self.square)
            self.noise += recent * (turned * turned / 6 - self.noise)
        if self.foretold > 0:  # a fall that is small beside the errors says little
            known = self.foretold * self.foretold
            certain = known / max(known + self.square, TINY * TINY)
            made = min(max(self.reach - error / self.foretold, LEAST), 1.0)
            self.reach += NEW * certain * (made - self.reach)
        trust = max(1 - self.noise / max(self.square, TINY), 1 / EVERY) if self.count else 1.0
        self.level = c - (1 - trust) * error
        self.before, self.moved = c, moved
        self.count += 1

    def share(self, sides: Sides | None, weight: float) -> float:
        """Return the share of the forget step that brings c to 0.

        At most all of it, or the weight; a closed gate stays closed, and foretells nothing: its
        gradient may have been spared, and steps that do not measure may follow. Of a step that is
        not finite nothing is foretold either.
        """
        self.foretold = 0.0
        if weight == 0 or sides is None or not all(map(math.isfinite, sides)):
            return weight
        share = sides.share(self.level / self.reach, max(weight, 1.0))
        self.foretold, self.ahead = sides.fall(share), max(sides.drift, 0.0)
        return share
