"""The expectations of `test_machine.py`: Algorithm 1 of SAUL and all that may happen to it.

Nothing of torch_alm is imported here. Gradients, the ball and the scaled step are of `oracle.py`;
the base steps are torch's own optimizers, over parameters of the oracle's own.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, AdamW, Optimizer

from tests import oracle
from tests.core import controller_oracle
from tests.core.controller_oracle import Entry
from tests.oracle import Gradient, differentiate, length, restore

Evaluation = tuple[Tensor, float, bool]  # the loss with its graph, the value seen, whether a pair

BASES: dict[str, Callable[..., Optimizer]] = {
    "sgd": lambda params, decay: SGD(params, lr=0.05, momentum=0.9, weight_decay=decay),
    "adamw": lambda params, decay: AdamW(params, lr=0.03, weight_decay=decay),
    "adagrad": lambda params, decay: Adagrad(params, lr=0.05, weight_decay=decay),
}

LONG = 64


def evaluate(objective: Callable[[], Any]) -> Evaluation:
    """Run an objective; errors as its contract names them."""
    found = objective()
    loss, value = found if isinstance(found, tuple) else (found, found)
    if not isinstance(loss, Tensor):
        raise TypeError("no tensor")
    if not loss.requires_grad:
        raise ValueError("no graph")
    number = value.item() if isinstance(value, Tensor) else value
    return loss, number, isinstance(found, tuple)


def added(register: Gradient, g: Gradient) -> Gradient:
    """The sum, where groups may have come since the first."""
    return oracle.added([*register, *[None] * (len(g) - len(register))], g)


def is_finite(register: Gradient) -> bool:
    return all(bool(g.isfinite().all()) for g in register if g is not None)


@dataclass
class Side:
    """A base optimizer, and the ball around theta; `rho=None` is no ball."""

    base: Optimizer
    rho: float | None
    sign: int = 0
    eps: float = 1e-12
    adaptive: bool = False

    def radii(self) -> dict[Tensor, float]:
        groups = self.base.param_groups
        return {p: group.get("rho", self.rho) for group in groups for p in group["params"]}

    def gradient(
        self,
        objective: Callable[[], Any],
        theta: list[nn.Parameter],
        weight: float,
        is_wanted: Callable[[float], bool] = lambda _: True,
    ) -> tuple[Gradient, Evaluation]:
        """Grad_SAM: the gradient and the numbers at theta + sign rho g / (|g| + eps).

        The loss of a pair is descended: at theta + rho g / (|g| + eps), whatever the sign.
        """
        origin = [p.detach().clone() for p in theta]
        if self.rho is not None:
            loss, _, is_pair = evaluate(objective)
            self.perturb(theta, differentiate(loss, theta), +1 if is_pair else self.sign)
        try:
            seen = evaluate(objective)
            wanted = is_wanted(seen[1])
            g = differentiate(seen[0], theta, weight) if wanted else [None] * len(theta)
        finally:
            restore(theta, origin)
        return g, seen

    def perturb(self, theta: list[nn.Parameter], g: Gradient, sign: int) -> None:
        """Move; under ASAM a weight counts in units of itself."""
        radii, units = self.radii(), [p.detach().abs() if self.adaptive else 1.0 for p in theta]
        found = zip(theta, units, g, strict=True)
        moving = [None if x is None or radii[p] == 0 else u * x for p, u, x in found]
        if 0 < length(moving) < math.inf:
            rho = [sign * radii[p] * u for p, u in zip(theta, units, strict=True)]
            oracle.perturb(theta, moving, rho, self.eps)


def controller(
    *, alpha: float, mu: float, sense: str, every: int, window: int, multiplier: float
) -> "Controller":
    one = [Entry(multiplier, multiplier)]
    return Controller(one, alpha, mu, sense, every, 0.0, ("mean", window, 0.0), [])


@dataclass
class Controller(controller_oracle.Controller):
    """The controller of one number, and the measurements that wait for its step."""

    value: float = math.nan
    observed: list[tuple[float, float]] = field(default_factory=list)
    active: int = 0
    skipped: int = 0
    is_blind: bool = False

    @property
    def multiplier(self) -> float:
        return self.entries[0].multiplier

    @property
    def weight(self) -> float:
        return self.entries[0].weight

    @property
    def violation(self) -> float:
        return self.entries[0].violation

    def mean(self) -> float | None:
        """The value at the weighted mean distance from alpha; or `None`."""
        finite = [(v, w) for v, w in self.observed if math.isfinite(v)]
        if not finite or len(self.observed) == 1:
            return finite[0][0] if finite else None
        far = sum((v - self.alpha) * w for v, w in finite)
        return self.alpha + far / sum(w for _, w in finite)

    def preview(self) -> float:
        """lambda+ of a step now; nothing changes."""
        return copy.deepcopy(self).step([self.mean()])[0]

    def commit(self) -> list[str]:
        """One step; what it says aloud."""
        seen = self.mean()
        bad = sum(not math.isfinite(v) for v, _ in self.observed)
        self.step([seen])
        self.is_blind, self.value = seen is None, self.value if seen is None else seen
        self.active += self.weight != 0
        self.skipped += bad
        self.observed = []
        return ["measurement"] if bad else []

    def status(self) -> str:
        assert self.steps < LONG, "longer runs may be suspected to be infeasible"
        if self.is_blind:
            return "non_finite"
        if math.isnan(self.value):
            return "unmeasured"
        if (abs(self.violation) if self.sense == "==" else self.violation) > 0:
            return "violated"
        if self.weight:
            return "satisfied"
        return "released" if self.active else "never_active"

    def metrics(self) -> dict[str, Any]:
        names = ("value", "violation", "multiplier", "weight", "mu", "skipped", "steps")
        found = {name: getattr(self, name) for name in names}
        found["active_share"] = self.active / max(self.steps, 1)
        found["status"] = self.status()
        return found

    def loaded(self, saved: "Controller") -> "Controller":
        """The state of `saved` under the settings here; mu is state, for it may grow."""
        new = copy.deepcopy(saved)
        new.move(self.alpha)
        new.observed = []
        return new

    def move(self, alpha: float) -> None:
        """Take another alpha; what a window remembers is measured against it, too."""
        risen = self.alpha - alpha if self.sense == "<=" else alpha - self.alpha
        self.alpha = alpha
        self.entries[0].history = [c + risen for c in self.entries[0].history]


class Oracle:
    """Theta, the sides' bases, and what both machines do with them."""

    def __init__(self, theta: list[Tensor], extras: int = 0) -> None:
        self.theta = [nn.Parameter(x.clone()) for x in theta]
        self.sides: dict[str, Side] = {}
        self.controller: Controller | None = None
        self.extras = extras
        self.has_warned = False
        self.said: list[str] = []

    def grads(self) -> Gradient:
        return [p.grad for p in self.theta]

    def put(self, register: Gradient) -> None:
        oracle.put(self.theta, register)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for p in self.theta:
            p.grad = None if set_to_none or p.grad is None else torch.zeros_like(p)

    def warn_once(self, what: str) -> None:
        if not self.has_warned:
            self.said.append(what)
        self.has_warned = True

    def add_group(self, x: Tensor, **options: Any) -> None:
        self.theta.append(nn.Parameter(x.clone()))
        self.extras += 1
        for side in self.sides.values():
            side.base.add_param_group({"params": [self.theta[-1]], **options})

    def resumed(self) -> Any:
        """A copy as a new process would have it: without gradients and without a past."""
        new = copy.deepcopy(self)
        new.zero_grad()
        new.has_warned = False
        new.said = []
        return new

    def load(self, saved: Any) -> None:
        """The state of another, in place: settings, gradients and flags stay."""
        restore(self.theta, [p.detach() for p in saved.theta])
        for name, side in self.sides.items():
            side.base.load_state_dict(copy.deepcopy(saved.sides[name].base.state_dict()))
        if self.controller is not None:
            self.controller = self.controller.loaded(saved.controller)
