r"""The rule behind `mu="auto"`: a penalty in the units of the optimizer's first-order response.

With the violation c, a = grad c, g the gradient that the optimizer is about to use, e what the loss
and clipping have multiplied the penalty's part of it by, r = g - e w a the rest of it (objective
and other constraints), and the optimizer's preconditioner d:

    G   = sum_i lr e a_i^2 / d_i         c that one unit of weight takes off in a step  [c / weight]
    rho = |r| / (e |a|)                  the weight at which the penalty pulls like the rest
    s   = sqrt(EMA_50 c^2)               the usual size of c
    mu  = min(K kappa / G, max(floor, eta rho / s)),  floor = min(kappa_0/G, limit |g| / (e |a| s))
    w   = [lambda + mu c~]_+             every step: the weight that acts (no projection for "==")
    lambda <- [lambda + theta mu cbar / (1 + turns)]_+   every 20 steps, cbar = EMA_10 c
    theta = clip(1 - 5 (cbar_before - cbar) / cbar, 0, 1), same sign only: none while c falls fast

Noise of a minibatch in c would reach theta through w twice: w is correlated with the a of the same
batch, and the projection lets only its upper half pass. What is noise shows in the steps d of c,
which white noise makes correlated by -1/2 and anything smooth positively:

    nu  = clip(-E_100[d d_before] / s^2, 0, 1)           the share of c^2 that is noise
    K   = max((1 - nu)^2, 1/20);  c~ <- c~ + K (c - c~)  what w sees, as slowly as mu is smaller
    cbar <- cbar + ((1 - nu)/10 + nu/k) (c - cbar)       in the k-th of 20 steps: noise counts alike
    turns <- [turns + nu (1 if cbar changed its sign, else -1/2)]_+        (Kesten 1958)
    theta <- theta + nu (1 - theta)

Without noise nu = 0, K = 1, c~ = c and turns = 0.

No constant has a unit. With F -> b F and f -> k f, mu becomes mu k / b^2 and w becomes w k / b: the
same gradient w a in units of f, hence the same theta. Only an optimizer's eps knows units.
"""

import math
from typing import NamedTuple

from torch_alm._constraint.stateful import Stateful

KAPPA, FLOOR, ETA, LIMIT, DAMPING = 0.3, 1e-3, 0.3, 10.0, 5.0
EVERY, EARLY, MEMORY, SMOOTH = 20, 60, 0.98, 0.9
LONG, BACK = 100, 0.5
TINY = 1e-150  # its square is a number, too


class Response(NamedTuple):
    """The response of one step: what it says of the optimizer and the constraint.

    Attributes:
        gain: G.
        norm: e |a|.
        rest: |r|.
        total: |g|.
    """

    gain: float
    norm: float
    rest: float
    total: float

    @property
    def balance(self) -> float:
        """rho."""
        return self.rest / max(self.norm, TINY)


class Auto(Stateful):
    """The rule's memory, next to lambda: twelve numbers, and a count of steps.

    Attributes:
        filtered: c~, the violation that the weight follows.
    """

    def __init__(self) -> None:
        """Start with nothing known: mu is 0."""
        self.gain = self.balance = self.pull = self.norm = 0.0
        self.square = self.mean = self.last = 0.0
        self.filtered = self.before = self.moved = self.noise = self.turns = 0.0
        self.count = 0

    @property
    def mu(self) -> float:
        """The penalty; 0 until a gradient of the constraint has been seen."""
        if self.gain == 0:
            return 0.0
        size = max(math.sqrt(self.square), TINY)
        gain = max(self.gain, TINY)
        limit = LIMIT * self.pull / max(self.norm * size, TINY) if self.pull > 0 else math.inf
        return min(
            self._trust * KAPPA / gain, max(min(FLOOR / gain, limit), ETA * self.balance / size)
        )

    def see(self, c: float) -> "Auto":
        """Take in the violation of this step, before anything else of it."""
        memory = MEMORY if self.count else 0.0
        self.square = memory * self.square + (1 - memory) * c * c
        self._tell_noise(c)
        smooth = self._smooth
        self.mean = smooth * self.mean + (1 - smooth) * c
        self.filtered += (self._trust if self.count else 1.0) * (c - self.filtered)
        return self

    def _tell_noise(self, c: float) -> None:
        """Take in how c moves: back again, if it is noise."""
        moved = c - self.before if self.count else 0.0
        if self.count > 1:
            self.noise -= (self.noise + self.moved * moved) / min(self.count - 1, LONG)
        self.before, self.moved = c, moved

    @property
    def _noisy(self) -> float:
        """nu."""
        return min(max(self.noise, 0.0) / max(self.square, TINY * TINY), 1.0)

    @property
    def _smooth(self) -> float:
        """The share of cbar that stays.

        With noise it makes a plain mean since lambda's last move, in which the batches of an epoch
        cancel; memory that fades leaves some of them.
        """
        if not self.count:
            return 0.0
        plain = 1 - 1 / (self.count % EVERY + 1)
        return SMOOTH + self._noisy * (plain - SMOOTH)

    @property
    def _trust(self) -> float:
        """K."""
        return max((1 - self._noisy) ** 2, 1 / EVERY)

    def calibrate(self, found: Response) -> None:
        """Take G and rho of this step: fast towards a smaller mu, by halves towards a larger one.

        Where a vanishes it says nothing, and what was known stays.
        """
        gain, balance = found.gain, found.balance
        if gain > 0 and found.norm > 0 and all(map(math.isfinite, found)):
            if self.gain > 0:
                gain = max(gain, 0.5 * (self.gain + gain))
                balance = min(balance, 0.5 * (self.balance + balance))
            self.gain, self.balance, self.norm = gain, balance, found.norm
        if math.isfinite(found.total):
            self.pull = max(found.total, 0.9 * self.pull)

    def advance(self) -> float:
        """Count a step that was taken; return what it adds to lambda."""
        self.count += 1
        if self.count % EVERY:
            return 0.0
        turned = self.last * self.mean < 0
        self.turns = max(self.turns + self._noisy * (1.0 if turned else -BACK), 0.0)
        added = self._share() * self.mu * self.mean / (1 + self.turns)
        self.last = self.mean
        return added

    def _share(self) -> float:
        """theta, against wind-up: nothing is stored while c is on its way to 0 anyway."""
        if not self.last * self.mean > 0:
            return 1.0
        share = min(max(1 - DAMPING * (self.last - self.mean) / self.mean, 0.0), 1.0)
        return share + self._noisy * (1 - share)
