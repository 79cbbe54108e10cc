r"""mu="auto": a penalty in the units of the optimizer's first-order response.

With the violation c, a = grad c, g the gradient that the optimizer is about to use, e what the loss
multiplies the penalty by, r = g - e w a the rest of it (objective, other constraints and L2), and
the optimizer's preconditioner d:

    G   = sum_i lr e a_i^2 / d_i         c that one unit of weight takes off in a step  [c / weight]
    rho = |r| / (e |a|)                  the weight at which the penalty pulls like the rest
    s   = sqrt(EMA_50 c^2)               the usual size of c
    mu  = min(K kappa / G, max(kappa_0 / G, eta rho / s))
    w   = [lambda + mu c~]_+             every step: the weight that acts (no projection for "==")
    lambda <- [lambda + theta mu cbar]_+             every 20 steps, cbar = EMA_10 c
    theta = clip(1 - (|cbar_before| - |cbar|) / (20 G rho), 0, 1)        kappa_0 c for G rho = 0

A price may begin at next to 0, where the objective is flat, and grow with every move towards the
goal. After five updates with theta > 0.9 and c on one side each further one adds twice as much as
the one before would have, up to kappa c / G, until c falls or turns.

theta stores nothing while c falls as fast as the price rho makes it fall at the rate of these
steps: a rate that is warmed up is no reason for a larger lambda. Nor is it one for a larger mu.
Under an adaptive optimizer the size of a weight that pulls alone does not matter, while v follows
it and G falls: kappa_0 / G would grow with the weight, so it is only where there is no rho yet.

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
from typing import ClassVar

import torch
from torch import Tensor

from torch_alm._constraint import numbers
from torch_alm._constraint.numbers import Mask, Number
from torch_alm._constraint.state import Stateful
from torch_alm._optim.steps import Response

KAPPA, FLOOR, ETA = 0.3, 1e-3, 0.3
EVERY, EARLY, MEMORY, SMOOTH = 20, 60, 0.98, 0.9
STUCK, PATIENCE = 0.9, 5.0
TINY = 1e-150  # its square is a number, too


class Auto(Stateful):
    """The rule's memory: a float each, or a float64 tensor with one entry per multiplier.

    Of several, each calibration reads one, in turn: as many backward passes as one number needs,
    and mu of each is as much older as there are entries.

    Attributes:
        every: steps per move of lambda.
    """

    every: ClassVar[int] = EVERY

    def __init__(self) -> None:
        self.gain = self.balance = self.floor = 0.0
        self.square = self.noise = self.mean = self.last = 0.0
        self.latest = self.moved = self.filtered = 0.0
        self.count, self.stuck = 0.0, -PATIENCE

    @property
    def mu(self) -> Number:
        """The penalty; 0 until a gradient of the constraint has been seen."""
        size = numbers.clamp(numbers.root(self.square), TINY, math.inf)
        least = self.floor / numbers.clamp(self.gain, TINY, math.inf)
        found = numbers.clamp(ETA * self.balance / size, least, self._most)
        return numbers.choose(self.gain == 0, 0.0, found)

    @property
    def _most(self) -> Number:
        """K kappa / G."""
        return self._trust * KAPPA / numbers.clamp(self.gain, TINY, math.inf)

    @property
    def _trust(self) -> Number:
        """K."""
        square = numbers.clamp(self.square, TINY * TINY, math.inf)
        noise = numbers.clamp(self.noise / square, 0.0, 1.0)
        return numbers.clamp((1 - noise) ** 2, 1 / EVERY, 1.0)

    def see(self, c: Number, where: Mask = True) -> "Auto":
        """Take in the violation of this step, before anything else of it."""
        first = {"square": c * c, "mean": c, "latest": c, "filtered": c}
        self.replace_entries(first, where & (self.count == 0))
        moved = c - self.latest
        later = {
            "square": MEMORY * self.square + (1 - MEMORY) * c * c,
            "noise": MEMORY * self.noise - (1 - MEMORY) * self.moved * moved,
            "mean": SMOOTH * self.mean + (1 - SMOOTH) * c,
            "latest": c,
            "moved": moved,
        }
        self.replace_entries(later, where)
        self.replace_entries({"filtered": self.filtered + self._trust * (c - self.filtered)}, where)
        return self

    def push(self, c: Number) -> Number:
        """Return mu c~ for this violation; nothing is remembered."""
        seen = copy.copy(self).see(c)
        return seen.mu * seen.filtered

    @property
    def wants_gradient(self) -> bool:
        """True early in each step, later in every 20th."""
        return self._is_early or self.steps % EVERY == 0

    def due_entry(self, number: Number) -> Number:
        """Select the entry whose gradient is due."""
        if not isinstance(number, Tensor):
            return number
        turn = self.steps if self._is_early else self.steps // EVERY
        return number.reshape(-1)[turn % number.numel()]

    @property
    def steps(self) -> int:
        """Number of counted steps, of the entry that has most."""
        return int(numbers.largest(self.count))

    @property
    def _is_early(self) -> bool:
        return self.steps < max(EARLY, numbers.shape(self.count).numel())

    def calibrate(self, found: Response, where: Mask = True) -> None:
        """Take G and rho of this step: fast towards a smaller mu, by halves towards a larger one.

        Where a vanishes it says nothing, and what was known stays.
        """
        gain, balance, is_plain = found
        if not (gain > 0 and math.isfinite(gain) and math.isfinite(balance)):
            return
        self.replace_entries({"gain": gain, "balance": balance}, where & (self.gain == 0))
        halfway = {
            "gain": numbers.clamp(0.5 * (self.gain + gain), gain, math.inf),
            "balance": numbers.clamp(0.5 * (self.balance + balance), 0.0, balance),
        }
        self.replace_entries(halfway, where)
        self.replace_entries({"floor": FLOOR if is_plain or balance == 0 else 0.0}, where)

    def step(self, c: Number, where: Mask, found: Response | None) -> Number:
        """Take one step, where something was seen; return what it adds to the multipliers."""
        self.see(c, where)
        if found is not None:
            size = numbers.shape(self.count)
            order = torch.arange(size.numel(), device="cpu").reshape(size) if size else 0.0
            self.calibrate(found, where & (order == self.due_entry(order)))
        return self.advance(where)

    def advance(self, where: Mask = True) -> Number:
        """Count a step that was taken; return what it adds to lambda."""
        self.replace_entries({"count": self.count + 1}, where)
        ends = where & (self.count % EVERY == 0)
        theta, most = self._theta(), self._most
        mu = numbers.clamp(self.mu * 2.0 ** numbers.clamp(self.stuck, 0.0, 60.0), 0.0 * most, most)
        added = numbers.choose(ends, theta * mu * self.mean, 0.0)
        is_stuck = (theta > STUCK) & (self.last * self.mean > 0)
        stuck = numbers.choose(is_stuck, self.stuck + 1.0, -PATIENCE)
        self.replace_entries({"last": self.mean, "stuck": stuck}, ends)
        return added

    def _theta(self) -> Number:
        """Against wind-up: nothing is stored while c falls as fast as rho makes it fall."""
        side = numbers.choose(self.mean < 0, -1.0, 1.0)
        falls = side * (self.last - self.mean)
        at_rho = numbers.choose(
            self.balance == 0, self.floor * side * self.mean, self.gain * self.balance
        )
        return numbers.clamp(1 - falls / numbers.clamp(EVERY * at_rho, TINY, math.inf), 0.0, 1.0)
