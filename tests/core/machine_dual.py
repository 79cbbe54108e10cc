"""Algorithm 1 with everything that may come between its lines; see `machine_oracle.py`."""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from tests.core.machine_oracle import Oracle, added, is_finite
from tests.oracle import Base, Gradient, clipped, length, scaled_step


class DualOracle(Oracle):
    """Retain, forget, lambda and the gate."""

    def __init__(self, theta: list[Tensor], *, scale: str, probe_every: int) -> None:
        super().__init__(theta)
        self.scale, self.probe_every = scale, probe_every
        self.register: Gradient | None = None
        self.sign = 0
        self.is_decided = False
        self.idle: int | None = None  # steps since a released constraint was measured
        self.known = 0.0, 0.0  # alpha and mu of that measurement
        self.skipped = 0

    def is_pending(self) -> bool:
        return self.register is not None

    def measures(self) -> bool:
        return self.idle is None or self.idle + 1 >= self.probe_every

    def ends_a_pause(self) -> bool:
        """Another alpha or mu does; lambda and the constraint stay the same here."""
        of = self.controller
        return self.register is None and of is not None and (of.alpha, of.mu) != self.known

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
        is_new = self.ends_a_pause()
        if is_new or self.measures():
            g_f, forgotten = self.measured(forget, weight, last)
            register = added(register, g_f)
        self.register, self.is_decided = register, last
        if is_new:
            self.idle = None
        self.put(added([p.grad for p in self.theta], g_r))
        return seen_r[0].item(), forgotten

    def measured(
        self, forget: Callable[[], Any], weight: float, last: bool
    ) -> tuple[Gradient, float]:
        observed = [] if self.controller is None else self.controller.observed
        decides = last and self.controller is not None

        def is_open(value: float) -> bool:
            assert self.controller is not None
            self.controller.observed = [*observed, (value, weight)]
            return self.controller.preview() != 0

        try:
            wanted = is_open if decides else lambda _: True
            g, seen = self.sides["forget"].gradient(forget, self.theta, weight, wanted)
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

    def clip(self, limit: float) -> tuple[float, float]:
        norms = length(self.grads()).item(), length(self.register or []).item()
        self.put(clipped(self.grads(), limit))
        if self.register is not None:
            self.register = clipped(self.register, limit)
        return norms

    def step(self) -> None:
        """lambda+; the forget step if lambda+ > 0; the retain step."""
        register, self.register, self.is_decided = self.register, None, False
        if register is None:
            self.warn_once("without a backward")
        else:
            self.forget_step(added(register, [None] * len(self.theta)), self.commit())
        self.sides["retain"].base.step()

    def commit(self) -> float:
        if not self.measures():
            assert self.idle is not None
            self.idle += 1
            return 0.0
        if self.controller is None:
            return 1.0
        self.before = self.controller.multiplier
        self.said += self.controller.commit()
        weight = self.controller.weight
        is_released = weight == 0 == self.controller.multiplier and self.controller.mu > 0
        self.idle = 0 if is_released else None
        self.known = self.controller.alpha, self.controller.mu
        return weight

    def forget_step(self, register: Gradient, weight: float) -> None:
        if weight == 0:
            return
        if not is_finite(register):
            self.skipped += 1
            if self.controller is not None:
                self.controller.entries[0].multiplier = self.before
            self.said.append("forget gradient")
            return
        g_r, sign = self.grads(), math.copysign(self.sign, self.sign * weight)
        descended = [None if g is None else sign * g for g in register]
        s_f = Base(self.sides["forget"].base)
        scaled_step(s_f, self.theta, descended, abs(weight), self.scale)
        self.put(g_r)

    def load(self, saved: "DualOracle") -> None:
        super().load(saved)
        self.known, self.idle, self.skipped = saved.known, saved.idle, saved.skipped
        self.register, self.is_decided = None, False
