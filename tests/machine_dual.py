"""Algorithm 1 with everything that may come between its lines; see `machine_oracle.py`."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tests.machine_oracle import Oracle, Register, added, clipped, is_finite, length


def pause(probes: list[tuple[int, float]]) -> int:
    """Steps to the next measurement: half of the way to the earliest violation; 16 at most."""
    moves = [(a - b, after - before) for (before, a), (after, b) in pairwise(probes)]
    if not moves:
        return 1
    speed, error = moves[0][0] / moves[0][1], 0.0
    for move, gap in moves[1:]:
        error = error / 2 + abs(move - speed * gap) / 2
        speed = max(move / gap, speed / 2 + move / gap / 2)
    left = probes[-1][1] - error / 2
    if left <= 0:
        return 1
    return 16 if speed <= 0 else min(max(math.floor(left / speed / 2), 1), 16)


class DualOracle(Oracle):
    """Retain, forget, lambda and the gate."""

    def __init__(self, theta: list[Tensor], *, scale: str, probe_every: int | str) -> None:
        super().__init__(theta)
        self.scale, self.probe_every = scale, probe_every
        self.register: Register | None = None
        self.sign = 0
        self.is_decided = False
        self.idle: int | None = None  # steps since a released constraint was measured
        self.probes: list[tuple[int, float]] = []  # since it is released: when, and by how much met
        self.known, self.bounds = 0.0, list[float]()  # alpha and radii of that measurement
        self.radii: list[float] = []  # of the side and its groups, in this step
        self.batches = 0  # micro-batches of the step, or of the one before
        self.is_alone = False  # whether this one is to have one
        self.said_last = False  # whether the latest was said to be the last
        self.clean: float | None = None  # what was measured at theta, if SAM was there
        self.looked: float | None = None  # the slack at theta, where that was all
        self.drop, self.age = math.nan, 0  # what SAM took of it last, and when
        self.skipped = 0

    def is_pending(self) -> bool:
        return self.register is not None

    def keeps_gradients(self) -> bool:
        return self.register is not None

    def measures(self) -> bool:
        if self.looked is not None:
            return False
        every = self.probe_every
        if every == "auto":
            every = min(pause(self.probes), 16 - self.age)
        return self.idle is None or self.idle + 1 >= every

    def ends_a_pause(self) -> bool:
        """Another alpha or a larger radius does; lambda and the constraint stay the same here."""
        of, pairs = self.controller, [*zip(self.radii, self.bounds, strict=False)]
        is_wider = len(self.radii) != len(self.bounds) or any(new > old for new, old in pairs)
        is_new = of is not None and (of.alpha != self.known or is_wider)
        return self.register is None and self.idle is not None and is_new

    def within(self) -> list[float]:
        """The radii of the forget side and of its groups."""
        side = self.sides["forget"]
        own = side.rho or 0.0
        return [own, *(group.get("rho", own) for group in side.base.param_groups)]

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.register, self.is_decided = None, False
        if self.controller is not None:
            self.controller.observed = []

    def backward(
        self, retain: Callable[[], Any], forget: Callable[[], Any], weight: float, last: bool
    ) -> tuple[float, float]:
        """Both gradients at one theta; everything or, after an error, nothing."""
        if self.is_decided:
            raise RuntimeError("decided")
        g_r, seen_r = self.sides["retain"].gradient(retain, self.theta, weight)
        register, forgotten = added(self.register or [], [None] * len(self.theta)), math.nan
        is_first, before = self.register is None, vars(self).copy()
        self.radii = self.within() if is_first else self.radii
        is_new = self.ends_a_pause()
        was_alone = self.batches == 1 and not self.said_last and weight == 1.0
        self.is_alone = is_first and (last or was_alone)
        self.batches = 1 if is_first else self.batches + 1
        self.clean = None if is_first else self.clean
        self.looked = None if is_first else self.looked
        try:
            if is_new or self.measures():
                may_look = self.is_alone and not is_new and self.idle is not None
                g_f, forgotten = self.measured(forget, weight, last, may_look)
                register = added(register, g_f)
        except BaseException:
            vars(self).update(before)
            raise
        self.register, self.is_decided, self.said_last = register, last, last
        if is_new:
            self.idle, self.probes = None, []
        self.put(added([p.grad for p in self.theta], g_r))
        return seen_r[0].item(), forgotten

    def measured(
        self, forget: Callable[[], Any], weight: float, last: bool, may_look: bool
    ) -> tuple[Register, float]:
        observed = [] if self.controller is None else self.controller.observed
        decides = last and self.controller is not None

        def is_open(value: float) -> bool:
            assert self.controller is not None
            self.controller.observed = [*observed, (value, weight)]
            return self.controller.preview() != 0

        def goes_on(value: float) -> bool:
            self.clean = value
            slack = self.slack(value) if may_look else math.nan
            age = self.age + (self.idle or 0) + 1
            is_far = age < 16 and slack > abs(self.drop) * 2 ** (1 + age / 16)
            self.looked = slack if is_far else None
            return not is_far

        try:
            wanted = is_open if decides else lambda _: True
            g, seen = self.sides["forget"].gradient(forget, self.theta, weight, wanted, goes_on)
            if self.looked is not None:
                return g, math.nan
            descended = seen[2] or (self.controller is not None and self.controller.sense == "<=")
            sign = 1 if descended else -1
            if self.register is not None and sign != self.sign:
                raise ValueError("mixed")
        except BaseException:
            if self.controller is not None:
                self.controller.observed = observed
            raise
        if self.controller is not None:
            self.controller.observed = [*observed, (seen[1], weight)]
        self.sign = sign
        return g, seen[0].item()

    def slack(self, value: float) -> float:
        """By how much a value meets alpha; unknown where it is not known in advance what counts."""
        of = self.controller
        if of is None or of.window > 1 or self.probe_every != "auto" or not math.isfinite(value):
            return math.nan
        c = value - of.alpha if of.sense == "<=" else of.alpha - value
        return -abs(c) if of.sense == "==" else -c

    def clip(self, limit: float) -> tuple[float, float]:
        norms = length(self.grads()), length(self.register or [])
        self.put(clipped(self.grads(), limit))
        if self.register is not None:
            self.register = clipped(self.register, limit)
        return norms

    def step(self) -> None:
        """lambda+; the forget step if lambda+ > 0; the retain step."""
        register, self.register, self.is_decided = self.register, None, False
        self.has_stepped = True
        if register is None:
            self.warn_once("without a backward")
        else:
            self.forget_step(added(register, [None] * len(self.theta)), self.commit())
        self.sides["retain"].base.step()

    def commit(self) -> float:
        if not self.measures():
            assert self.idle is not None
            gap, self.idle = self.idle + 1, self.idle + 1
            if self.looked is not None:
                self.idle, self.age = 0, self.age + gap
                self.probes.append((self.probes[-1][0] + gap, self.looked - self.drop))
                self.looked = None
            return 0.0
        if self.controller is None:
            return 1.0
        self.said += self.controller.step()
        weight, c = self.controller.weight, self.controller.violation
        since = None if self.idle is None or not self.probes else self.probes[-1][0]
        now = 0 if since is None else since + self.idle + 1
        self.idle = 0 if weight == 0 == self.controller.multiplier else None
        self.known, self.bounds = self.controller.alpha, self.radii
        slack = -abs(c) if self.controller.sense == "==" else -c
        is_known = self.idle == 0 and not self.controller.is_blind
        if self.idle == 0:
            is_seen = self.clean is not None and self.batches == 1
            clean = self.slack(self.clean) if self.clean is not None and is_seen else math.nan
            self.drop, self.age = clean - slack, 0
        self.probes = [*self.probes * (since is not None), (now, slack)] if is_known else []
        return weight

    @torch.no_grad()
    def forget_step(self, register: Register, weight: float) -> None:
        if weight == 0:
            return
        if not is_finite(register):
            self.skipped += 1
            self.said.append("forget gradient")
            return
        g_r, before = self.grads(), [p.detach().clone() for p in self.theta]
        factor = self.sign * (weight if self.scale == "gradient" else 1.0)
        self.put([None if g is None else g * factor for g in register])
        self.sides["forget"].base.step()
        if self.scale == "step":
            for p, start in zip(self.theta, before, strict=True):
                p.copy_(start + weight * (p - start))
        self.put(g_r)

    def load(self, saved: "DualOracle") -> None:
        super().load(saved)
        self.known, self.bounds = saved.known, [*saved.bounds]
        self.idle, self.skipped, self.probes = saved.idle, saved.skipped, [*saved.probes]
        self.batches = 0 if saved.said_last else saved.batches
        self.said_last, self.drop, self.age = False, saved.drop, saved.age
        self.clean = self.looked = None
        self.register, self.is_decided = None, False
