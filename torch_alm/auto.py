r"""mu="auto": a penalty in the units of the optimizer's first-order response, and steps that aim.

With the violation c, a = grad c, g the gradient that the optimizer is about to use, e what the loss
multiplies the penalty by, r = g - e w a the rest of it (objective and other constraints), and the
optimizer's preconditioner d:

    G   = sum_i lr e a_i^2 / d_i         c that one unit of weight takes off in a step  [c / weight]
    rho = |r| / (e |a|)                  the weight at which the penalty pulls like the rest
    s   = sqrt(EMA_50 c^2)               the usual size of c
    mu  = min(K kappa / G, max(floor, eta rho / s)),  floor = min(kappa_0/G, limit |g| / (e |a| s))
    w   = [lambda + mu c~]_+             every step: the weight that acts (no projection for "==")
    lambda <- [lambda + theta mu cbar / (1 + turns)]_+   every 20 steps, cbar = EMA_10 c
    theta = clip(1 - 5 (cbar_before - cbar) / cbar, 0, 1), same sign only: none while c falls fast

Noise shows in the steps m of c, which white noise makes correlated by -1/2 and anything smooth
positively. Left alone it would reach theta twice: w is correlated with the a of the same batch, and
the projection lets only its upper half pass.

    nu  = clip(-E_100[m m_before] / s^2, 0, 1)           the share of c^2 that is noise
    K   = max((1 - nu)^2, 1/20);  c~ <- c~ + K (c - c~)  what w sees, as slowly as mu is smaller
    cbar <- cbar + ((1 - nu)/10 + nu/k) (c - cbar)       in the k-th of 20 steps: noise counts alike
    turns <- [turns + nu (1 if cbar changed its sign, else -1/2)]_+        (Kesten 1958)
    theta <- theta + nu (1 - theta)

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

KAPPA, FLOOR, ETA, LIMIT, DAMPING = 0.3, 1e-3, 0.3, 10.0, 5.0
EVERY, EARLY, MEMORY, SMOOTH, LONG, BACK = 20, 60, 0.98, 0.9, 100, 0.5
LEARN, DRIFT, FULL = 0.7, 0.3, 0.5  # of a secant: per step, of the drift, the share that says most
NEAR = 0.1, 3.0  # times its first-order estimate: where the secant is believed
TINY = 1e-150  # its square is a number, too


class Entry(Stateful):
    """The rule's memory for one multiplier, next to lambda: thirteen numbers and a count."""

    def __init__(self) -> None:
        self.gain = self.balance = self.pull = self.norm = 0.0
        self.square = self.mean = self.last = 0.0
        self.filtered = self.before = self.moved = self.noise = self.turns = 0.0
        self.count = 0

    @property
    def mu(self) -> float:
        """The penalty; 0 until a gradient of the constraint has been seen."""
        if self.gain == 0:
            return 0.0
        size, gain = max(math.sqrt(self.square), TINY), max(self.gain, TINY)
        limit = LIMIT * self.pull / max(self.norm * size, TINY) if self.pull > 0 else math.inf
        least = max(min(FLOOR / gain, limit), ETA * self.balance / size)
        return min(self._trust * KAPPA / gain, least)

    def see(self, c: float) -> "Entry":
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
        """The share of cbar that stays: with noise, a plain mean since lambda's last move."""
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
        gain, balance = found.gain, found.rest / max(found.norm, TINY)
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
        added = self._theta() * self.mu * self.mean / (1 + self.turns)
        self.last = self.mean
        return added

    def _theta(self) -> float:
        """Against wind-up: nothing is stored while c is on its way to 0 anyway."""
        if not self.last * self.mean > 0:
            return 1.0
        share = min(max(1 - DAMPING * (self.last - self.mean) / self.mean, 0.0), 1.0)
        return share + self._noisy * (1 - share)


class Aim(Stateful):
    """The share of a finished forget step that ends the violation, by a secant.

    Where the share s is made, c falls by s G - d: G is what all of the forget step takes off, d
    what the retain step adds. Both follow what the last steps did to c,

        error = fall - (s G - d);  G <- G + k s error;  d <- d - k q^2 error;  k = 0.7 / (s^2 + q^2)

    with q = 0.3, and G takes the whole error where a large share has done more than was foretold.
    The next share is clip((c~ + d) / G, 0, 1). At first G is its first-order estimate, and later it
    stays within 0.1 and 3 times that, d within 0 and G: what noise says is bounded.
    """

    def __init__(self) -> None:
        self.fall = self.drift = self.share = self.before = 0.0

    def see(self, c: float, full: float) -> None:
        """Learn from what the last step did to c; `full` is the first-order estimate of G."""
        if self.fall == 0:
            self.fall = full
        fall, s = self.before - c, self.share
        if math.isfinite(fall) and s > 0:
            error = fall - (s * self.fall - self.drift)
            rate = LEARN / (s * s + DRIFT * DRIFT)
            is_steeper = error > 0 and s >= FULL
            self.fall += error / s if is_steeper else rate * s * error
            self.drift -= 0.0 if is_steeper else rate * DRIFT * DRIFT * error
            self.fall = min(max(self.fall, NEAR[0] * full), NEAR[1] * full)
            self.drift = min(max(self.drift, 0.0), self.fall)
        self.before = c

    def at(self, c: float, weight: float) -> float:
        """Return the share; a closed gate stays closed."""
        self.share = 0.0
        if weight > 0:
            ends = (c + self.drift) / self.fall if self.fall > 0 else 1.0
            self.share = min(max(ends, 0.0), 1.0)
        return self.share

    @property
    def ahead(self) -> float:
        """d, which a gate that is open counts as violated already."""
        return max(self.drift, 0.0) if self.share > 0 else 0.0


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
        self.size, self.each, self.aimed, self.loop = Size(), [Entry()], Aim(), Loop()
        self.is_owed = False  # a step that was to bring a gradient had none, as one with a nan
        self.full = 0.0

    def expand(self, size: Size) -> None:
        """Keep one per entry; as many as there are stay what they are."""
        if size != self.size:
            self.size = size
            self.each = [copy.copy(self.each[0]) for _ in range(size.numel())]

    def state(self) -> dict[str, Any]:
        """Return the numbers, each with an entry per multiplier."""
        names = vars(self.each[0])
        found = {name: self._joined([vars(each)[name] for each in self.each]) for name in names}
        return {**found, "is_owed": self.is_owed, "full": self.full, "aim": self.aimed.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`."""
        self.aimed.load(state["aim"])
        self.is_owed, self.full = bool(state["is_owed"]), float(state["full"])
        for name, now in vars(self.each[0]).items():
            for each, number in zip(self.each, self._apart(state[name]), strict=True):
                setattr(each, name, type(now)(number))

    @property
    def _count(self) -> int:
        return max(each.count for each in self.each)

    @property
    def _is_early(self) -> bool:
        return self._count < max(EARLY, len(self.each))

    @property
    def wants_gradient(self) -> bool:
        """True early in each step, later in every 20th; where that had none, in the next."""
        return self._is_early or self._count % EVERY == 0 or self.is_owed

    @property
    def entry(self) -> int:
        """The entry whose gradient that is."""
        return (self._count if self._is_early else self._count // EVERY) % len(self.each)

    @property
    def is_blind(self) -> bool:
        """True where mu was never found from anything, and this step has nothing either."""
        is_known = any(each.gain > 0 for each in self.each) or self.loop.is_spoiled
        return self.wants_gradient and self.loop.found is None and not is_known

    def watch(self, penalty: Tensor, c: Tensor, weight: Number, *, is_finite: bool) -> Tensor:
        """Take the gradient that is due; return a penalty whose way to `.grad` can be followed."""
        self.loop.is_spoiled |= not is_finite
        if self.loop.is_spoiled or not self.wants_gradient:
            return penalty
        i = self.entry
        acting = float(weight.reshape(-1)[i]) if isinstance(weight, Tensor) else weight
        return self.loop.watch(penalty, c.reshape(-1)[i], acting)

    def calibrate(self, optimizer: Optimizer, a: Gradient, rest: Gradient, weight: float) -> None:
        """Take the response of an optimizer that steps on `weight` times grad c alone."""
        acting = {p: weight * x for p, x in a.items()}
        g = {**rest, **{p: x + rest[p] if p in rest else x for p, x in acting.items()}}
        self.loop.found = response(optimizer, a, rest, g, acting)

    @property
    def mu(self) -> Number:
        """The penalty of each; 0 where no gradient has been seen."""
        return self._joined([each.mu for each in self.each])

    def push(self, c: Number) -> Number:
        """Return mu (c~ + d) for this violation; nothing is remembered."""
        seen = [copy.copy(each).see(x) for each, x in zip(self.each, self._apart(c), strict=True)]
        return self._joined([each.mu * (each.filtered + self.aimed.ahead) for each in seen])

    def aim(self, weight: float) -> float:
        """Return how much of a finished forget step to make, for one number."""
        (each,) = self.each
        self.aimed.see(each.before, self.full)
        return self.aimed.at(each.filtered, weight)

    def step(self, c: Number, seen: Mask) -> Number:
        """Take one step, where something was seen; return what it adds to the multipliers."""
        entry, added, response = self.entry, list[float](), self.loop.found
        self.is_owed = self.wants_gradient and response is None
        if response is not None:
            self.full = response.full
        for i, (each, x, is_seen) in enumerate(
            zip(self.each, self._apart(c), self._apart(seen), strict=True)
        ):
            if is_seen:
                each.see(x)
                if response is not None and i == entry:
                    each.calibrate(response)
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
