"""Losses that may fail, the library's half of the machine, and comparisons with the oracle.

The losses are of a few parameters, and not convex.
"""

import copy
import io
import math
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.core.machine_oracle import Oracle
from torch_alm import ALMConstraint

Loss = Callable[[list[nn.Parameter], float], Tensor]

DATA = (0.37, -1.13, 0.91, 2.29, -0.58)


def start() -> list[Tensor]:
    """A vector, a matrix and a number."""
    a = torch.tensor([0.41, -0.87, 1.33], dtype=torch.float64)
    b = torch.tensor([[0.29, -0.71], [0.53, 1.17]], dtype=torch.float64)
    return [a, b, torch.tensor(-0.23, dtype=torch.float64)]


def retain_loss(theta: list[nn.Parameter], x: float) -> Tensor:
    """Bounded, so that no multiplier makes it run away."""
    a, b, c, *extras = theta
    loss = torch.sin(a * x + 0.3).sum() + torch.tanh(b @ b - x).square().mean() + torch.cos(c - x)
    return sum((torch.cos(extra + x).sum() for extra in extras), start=loss)


def forget_loss(theta: list[nn.Parameter], x: float) -> Tensor:
    """Between about -3 and 3; the number has no part in it."""
    a, b, _, *extras = theta
    loss = torch.cos(a + x).mean() + 0.5 * torch.tanh(b * x + 0.1).sum()
    return sum((0.3 * torch.sin(extra - x).mean() for extra in extras), start=loss)


class Boom(Exception):
    """The error that an objective raises here."""


class Breaks(torch.autograd.Function):
    """The identity, until somebody differentiates it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Tensor:
        raise Boom("in the backward pass")


BROKEN: dict[str, Callable[[Tensor], Any]] = {
    "nan": lambda loss: loss * math.nan,
    "nan_gradient": lambda loss: loss + (loss * 0).sqrt(),
    "inf": lambda loss: loss + math.inf,
    "number": lambda loss: loss.item(),
    "detached": lambda loss: loss.detach(),
    "backward": lambda loss: loss,
}
NOT_FINITE = ("nan", "nan_gradient", "inf")
FAULTS = ("raise", *BROKEN)


@dataclass(frozen=True)
class Fault:
    """A fault in the run with this number; 0 is each one."""

    kind: str
    run: int = 0


@dataclass
class Objective:
    """A loss at some data; as a pair, half of it climbed and all of it seen."""

    loss: Loss
    theta: list[nn.Parameter]
    x: float
    fault: Fault | None = None
    is_pair: bool = False
    runs: int = 0

    def __call__(self) -> Any:
        self.runs += 1
        kind = self.fault.kind if self.fault and self.fault.run in (0, self.runs) else None
        if kind == "raise":
            raise Boom("in the forward pass")
        # Made first, it is differentiated last, when some gradients have arrived already.
        late = Breaks.apply(self.theta[0]).sum() * 0 if kind == "backward" else None
        value = self.loss(self.theta, self.x)
        if kind is not None:
            value = BROKEN[kind](value if late is None else value + late)
        if not self.is_pair:
            return value
        loss = -0.5 * value + (torch.sin(self.theta[2]) if isinstance(value, Tensor) else 0)
        return loss, value.detach() if isinstance(value, Tensor) else value


EXPECTED = (Boom, TypeError, ValueError, RuntimeError)
SAYINGS = ("measurement", "forget gradient", "without a backward")


class Model(nn.Module):
    """A list of parameters with names."""

    def __init__(self, theta: list[Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(x.detach().clone()) for x in theta])


class World:
    """A model and what trains it; `sides` are the optimizers the oracle knows by these names."""

    def __init__(self, oracle: Oracle, build: Callable[[list[nn.Parameter]], Optimizer]) -> None:
        self.model = Model([p.detach() for p in oracle.theta])
        self.theta = list(self.model.weights)
        for p, q in zip(self.theta, oracle.theta, strict=True):
            p.requires_grad_(q.requires_grad)
        self.optimizer: Any = build(self.theta)
        self.constraint: ALMConstraint | None = None

    @property
    def sides(self) -> dict[str, Any]:
        """Each base optimizer under the name of its side."""
        return {name: bare(side) for name, side in self.outer_sides().items()}

    def outer_sides(self) -> dict[str, Any]:
        return self.optimizer._bases

    def add_group(self, x: Tensor, **options: Any) -> None:
        p = nn.Parameter(x.clone())
        self.model.weights.append(p)
        self.theta.append(p)
        self.optimizer.add_param_group({"params": [p], **options})

    def zero_grad(self, set_to_none: bool) -> None:
        self.optimizer.zero_grad(set_to_none)

    def save(self) -> bytes:
        """A checkpoint as users write it."""
        file = io.BytesIO()
        state = {"optimizer": self.optimizer.state_dict(), "model": self.model.state_dict()}
        torch.save(state, file)
        return file.getvalue()

    def load(self, saved: bytes) -> None:
        state = torch.load(io.BytesIO(saved), weights_only=True)
        self.optimizer.load_state_dict(state["optimizer"])  # which may refuse it
        self.model.load_state_dict(state["model"])

    def duplicate(self, *, pickled: bool) -> None:
        """Go on with a copy."""
        parts = (self.model, self.optimizer, self.constraint)
        parts = pickle.loads(pickle.dumps(parts)) if pickled else copy.deepcopy(parts)
        self.model, self.optimizer, self.constraint = parts
        self.theta = list(self.model.weights)


def bare(side: Any) -> Optimizer:
    """The base of a SAM; a plain optimizer is its own."""
    return getattr(side, "base", side)


def outcome(call: Callable[[], Any]) -> Any:
    """A call's result, or the kind of error it raises."""
    try:
        return call()
    except EXPECTED as error:
        return next(kind for kind in EXPECTED if isinstance(error, kind))


def heard(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """A call's result, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = outcome(call)
    return result, [saying(str(each.message)) for each in caught]


def saying(text: str) -> str:
    found = [each for each in SAYINGS if each in text]
    assert found, f"an unexpected warning: {text}"
    return found[0]


def assert_same(name: str, found: object, expected: object, *, exact: bool) -> None:
    """Bit for bit, or within 1e-12; a NaN equals a NaN."""
    if isinstance(expected, tuple) and isinstance(found, tuple):
        found, expected = ([float(x) for x in each] for each in (found, expected))
    is_same = type(found) is type(expected) and not isinstance(found, Tensor) and found == expected
    if isinstance(found, Tensor) and isinstance(expected, Tensor):
        is_same = torch.equal(found, expected)
    if is_same:  # as nearly all is, and quicker to tell
        return
    assert isinstance(expected, Tensor | float | list), f"{name}: {found}, {expected}"
    within, given = 0.0 if exact else 1e-12, {"equal_nan": True, "msg": f"{name}: {{}}".format}
    torch.testing.assert_close(found, expected, rtol=within, atol=within, **given)


def assert_equal(world: World, oracle: Oracle, *, exact: bool) -> None:
    """Weights, gradients, states, groups and the constraint's numbers."""
    for i, (p, q) in enumerate(zip(world.theta, oracle.theta, strict=True)):
        assert_same(f"theta[{i}]", p, q, exact=exact)
        assert_same(f"theta[{i}].grad", p.grad, q.grad, exact=exact)
        assert p.requires_grad == q.requires_grad
    assert world.sides.keys() == oracle.sides.keys()
    for name, base in world.sides.items():
        assert_equal_bases(name, base, oracle.sides[name].base, exact=exact)
    if world.constraint is None or oracle.controller is None:
        assert world.constraint is oracle.controller is None
        return
    assert world.constraint.observed == len(oracle.controller.observed)
    metrics = world.constraint.metrics()
    for name, expected in oracle.controller.metrics().items():
        assert_same(name, metrics[name], expected, exact=exact)


def assert_equal_bases(name: str, found: Optimizer, expected: Optimizer, *, exact: bool) -> None:
    for ours, theirs in zip(found.param_groups, expected.param_groups, strict=True):
        settings = [{k: v for k, v in group.items() if k != "params"} for group in (ours, theirs)]
        assert settings[0] == settings[1], name
        for p, q in zip(ours["params"], theirs["params"], strict=True):
            one, two = found.state.get(p, {}), expected.state.get(q, {})
            assert one.keys() == two.keys(), f"{name}: {one} is not {two}"
            for key in one:
                assert_same(f"{name}: {key}", one[key], two[key], exact=exact)


@torch.no_grad()
def align(world: World, oracle: Oracle) -> None:
    """Give the oracle the bits it was found equal to, so that roundings do not add up."""
    for p, q in zip(world.theta, oracle.theta, strict=True):
        q.copy_(p)
        if p.grad is not None:
            q.grad = p.grad.clone()
    for name, base in world.sides.items():
        other = oracle.sides[name].base
        for ours, theirs in zip(base.param_groups, other.param_groups, strict=True):
            for p, q in zip(ours["params"], theirs["params"], strict=True):
                for key, value in base.state.get(p, {}).items():
                    if isinstance(value, Tensor):
                        other.state[q][key].copy_(value)
