"""Losses of a few parameters that are not convex, and the ways in which they may fail."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

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
