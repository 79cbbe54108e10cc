r"""mu="auto": a penalty in the units of the optimizer's first-order response, and steps that aim.

With the violation c, a = grad c, g the gradient that the optimizer is about to use, e what the loss
multiplies the penalty by, r = g - e w a the rest of it (objective and other constraints), and the
optimizer's preconditioner d:

    G   = sum_i lr e a_i^2 / d_i         c that one unit of weight takes off in a step  [c / weight]
    rho = |r| / (e |a|)                  the weight at which the penalty pulls like the rest
    s   = sqrt(EMA_50 c^2)               the usual size of c
    mu  = min(K kappa / G, max(kappa_0 / G, eta rho / s))
    w   = [lambda + mu c~]_+             every step: the weight that acts (no projection for "==")
    lambda <- [lambda + theta mu cbar]_+             every 20 steps, cbar = EMA_10 c
    theta = clip(1 - 5 (cbar_before - cbar) / cbar, 0, 1): none while c falls fast

Noise shows in the steps m of c, which white noise makes correlated by -1/2 and anything smooth
positively. Left alone it reaches theta: w is correlated with the a of the same batch, and the
projection lets only its upper half pass.

    nu  = clip(-EMA_50[m m_before] / s^2, 0, 1)          the share of c^2 that is noise
    K   = max((1 - nu)^2, 1/20);  c~ <- c~ + K (c - c~)  what w sees, as slowly as mu is smaller

No constant has a unit. With F -> b F and f -> k f, mu becomes mu k / b^2 and w becomes w k / b: the
same gradient w a in units of f, hence the same theta. Only an optimizer's eps knows units.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.optim import Optimizer

from torch_alm._constraint.loop import Gradient, Loop, Response, response
from torch_alm._constraint.numbers import Mask, Number
from torch_alm._constraint.state import Stateful

KAPPA, FLOOR, ETA, DAMPING = 0.3, 1e-3, 0.3, 5.0
EVERY, EARLY, MEMORY, SMOOTH = 20, 60, 0.98, 0.9
LEARN, SMALL = 0.7, 0.3  # of a secant: per step, and the share below which one says little
NEAR = 0.1, 3.0  # times its first-order estimate: where the secant is believed
TINY = 1e-150  # its square is a number, too


class Entry(Stateful):
    """The rule's memory for one multiplier, next to lambda."""

    def __init__(self) -> None:
        self.gain = self.balance = 0.0
        self.square = self.noise = self.mean = self.last = 0.0
        self.latest = self.moved = self.filtered = 0.0
        self.reach = self.share = 0.0
        self.count = 0

    @property
    def mu(self) -> float:
        """The penalty; 0 until a gradient of the constraint has been seen."""
        if self.gain == 0:
            return 0.0
        size, gain = max(math.sqrt(self.square), TINY), max(self.gain, TINY)
        return min(self._trust * KAPPA / gain, max(FLOOR / gain, ETA * self.balance / size))

    @property
    def _trust(self) -> float:
        """K."""
        noise = min(max(self.noise, 0.0) / max(self.square, TINY * TINY), 1.0)
        return max((1 - noise) ** 2, 1 / EVERY)

    def see(self, c: float) -> "Entry":
        """Take in the violation of this step, before anything else of it."""
        if self.count == 0:
            self.square, self.mean, self.latest, self.filtered = c * c, c, c, c
        moved = c - self.latest
        self.square = MEMORY * self.square + (1 - MEMORY) * c * c
        self.noise = MEMORY * self.noise - (1 - MEMORY) * self.moved * moved
        self.mean = SMOOTH * self.mean + (1 - SMOOTH) * c
        self.latest, self.moved = c, moved
        self.filtered += self._trust * (c - self.filtered)
        return self

    def calibrate(self, found: Response) -> None:
        """Take G and rho of this step: fast towards a smaller mu, by halves towards a larger one.

        Where a vanishes it says nothing, and what was known stays.
        """
        gain, balance = found
        if not (gain > 0 and math.isfinite(gain) and math.isfinite(balance)):
            return
        if self.gain > 0:
            gain = max(gain, 0.5 * (self.gain + gain))
            balance = min(balance, 0.5 * (self.balance + balance))
        self.gain, self.balance = gain, balance

    def advance(self) -> float:
        """Count a step that was taken; return what it adds to lambda."""
        self.count += 1
        if self.count % EVERY:
            return 0.0
        added = self._theta() * self.mu * self.mean
        self.last = self.mean
        return added

    def _theta(self) -> float:
        """Against wind-up: nothing is stored while c is on its way to 0 anyway."""
        falls = (self.last - self.mean) / self.mean if self.mean else 0.0
        return min(max(1 - DAMPING * falls, 0.0), 1.0)

    def aim(self, weight: float) -> float:
        """Return the share of a finished forget step that ends the violation, by a secant.

        Where the share s is made, c falls by s R. R follows what the last step did to c,

            R <- R + k s (fall - s R),  k = 0.7 / (s^2 + 0.3^2)

        and the next share is clip(c~ / R, 0, 1). R begins as G, its first-order estimate, and stays
        within 0.1 and 3 times that: what noise says is bounded. A closed gate stays closed.
        """
        s, fall = self.share, -self.moved
        reach = self.reach + LEARN * s / (s * s + SMALL * SMALL) * (fall - s * self.reach)
        reach = reach if self.reach else self.gain
        self.reach = min(max(reach, NEAR[0] * self.gain), NEAR[1] * self.gain)
        ends = self.filtered / self.reach if self.reach else 1.0
        self.share = min(max(ends, 0.0), 1.0) if weight > 0 else 0.0
        return self.share


class Auto(Stateful):
    """A rule per multiplier; of several, each calibration reads one, in turn.

    As many backward passes as one number needs, and mu of each is as much older as there are
    entries.

    Attributes:
        every: steps per move of lambda.
        loop: where a penalty in a loss shows its gradient.
    """

    every: ClassVar[int] = EVERY

    def __init__(self) -> None:
        self.size, self.each, self.loop = Size(), [Entry()], Loop()

    def expand(self, size: Size) -> None:
        """Keep one per entry; as many as there are stay what they are."""
        if size != self.size:
            self.size = size
            self.each = [copy.copy(self.each[0]) for _ in range(size.numel())]

    def state(self) -> dict[str, Any]:
        """Return the numbers of each entry."""
        return {"each": [each.state() for each in self.each]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`."""
        for each, found in zip(self.each, state["each"], strict=True):
            each.load(found)

    @property
    def _count(self) -> int:
        return max(each.count for each in self.each)

    @property
    def _is_early(self) -> bool:
        return self._count < max(EARLY, len(self.each))

    @property
    def wants_gradient(self) -> bool:
        """True early in each step, later in every 20th."""
        return self._is_early or self._count % EVERY == 0

    @property
    def is_blind(self) -> bool:
        """True where mu was never found from anything, and this step has nothing either."""
        return self.loop.found is None and not any(each.gain > 0 for each in self.each)

    def watch(self, penalty: Tensor, c: Tensor, weight: Number) -> Tensor:
        """Take the gradient that is due; return a penalty whose way to `.grad` can be followed."""
        if not self.wants_gradient:
            return penalty
        acting = self._apart(weight)[self._entry]
        return self.loop.watch(penalty, c.reshape(-1)[self._entry], acting)

    @property
    def _entry(self) -> int:
        """The entry whose gradient is due."""
        return (self._count if self._is_early else self._count // EVERY) % len(self.each)

    def calibrate(self, optimizer: Optimizer, a: Gradient, rest: Gradient, weight: float) -> None:
        """Take the response of an optimizer that steps on `weight` times grad c alone."""
        stepped = {p: weight * x for p, x in a.items()}
        self.loop.found = response(optimizer, a, rest, stepped)

    @property
    def mu(self) -> Number:
        """The penalty of each; 0 where no gradient has been seen."""
        return self._joined([each.mu for each in self.each])

    def push(self, c: Number) -> Number:
        """Return mu c~ for this violation; nothing is remembered."""
        seen = [copy.copy(each).see(x) for each, x in zip(self.each, self._apart(c), strict=True)]
        return self._joined([each.mu * each.filtered for each in seen])

    def aim(self, weight: float) -> float:
        """Return how much of a finished forget step to make, for one number."""
        (each,) = self.each
        return each.aim(weight)

    def step(self, c: Number, seen: Mask) -> Number:
        """Take one step, where something was seen; return what it adds to the multipliers."""
        due, added = self._entry, list[float]()
        for i, (each, x, is_seen) in enumerate(
            zip(self.each, self._apart(c), self._apart(seen), strict=True)
        ):
            if is_seen:
                each.see(x)
                if self.loop.found is not None and i == due:
                    each.calibrate(self.loop.found)
            added.append(each.advance() if is_seen else 0.0)
        self.loop.begin()
        return self._joined(added)

    def _apart(self, given: Number | Mask) -> list[Any]:
        """List the entries; a plain one is that of all."""
        if isinstance(given, Tensor):
            return given.reshape(-1).tolist()
        return [given] * len(self.each)

    def _joined(self, found: list[float]) -> Number:
        """Make of the entries what a multiplier is: a float, or a tensor of float64."""
        if self.size == ():
            return found[0]
        return torch.tensor(found, dtype=torch.float64).reshape(self.size)
