"""Training that is saved and resumed, for any optimizer, plain or wrapped."""

import copy
import io
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful

from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM
from torch_alm.checkpoint import DualState

Make = Callable[[nn.Module], Any]


def saul(make: Make, net: nn.Module) -> DualOptimizer:
    return DualOptimizer(
        SAM(make(net), rho=0.05), ReverseSAM(make(net), rho=0.05), ALMConstraint(None, 0.6, 1.0)
    )


WRAPPERS: dict[str, Callable[[Make, nn.Module], Any]] = {
    "plain": lambda make, net: make(net),
    "SAM": lambda make, net: SAM(make(net), rho=0.05),
    "ReverseSAM": lambda make, net: ReverseSAM(make(net), rho=0.05),
    "Dual": lambda make, net: DualOptimizer(make(net), make(net), ALMConstraint(None, 0.6, 1.0)),
    "SAUL": saul,
}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def theta(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def loss(net: nn.Module, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    return net(torch.randn(5, 4, generator=generator)).square().mean()


def backward(net: nn.Module, optimizer: Any, step: int) -> None:
    if isinstance(optimizer, DualOptimizer):
        optimizer.backward(retain=lambda: loss(net, step), forget=lambda: loss(net, 50 + step))
    elif isinstance(optimizer, SAM | ReverseSAM):
        optimizer.backward(lambda: loss(net, step))
    else:
        loss(net, step).backward()


def train(
    net: nn.Module, optimizer: Any, steps: range, each: Callable[[], Any] = lambda: None
) -> None:
    """The plain loop; optimizers that draw random numbers draw the same from each beginning."""
    torch.manual_seed(steps.start)
    random.seed(steps.start)
    np.random.seed(steps.start)
    for step in steps:
        backward(net, optimizer, step)
        optimizer.step()
        optimizer.zero_grad()
        each()


class Named(Stateful):
    """A single optimizer, saved by parameter name."""

    def __init__(self, net: nn.Module, optimizer: Any) -> None:
        self.net, self.optimizer = net, optimizer

    def state_dict(self) -> dict[str, Any]:
        return get_optimizer_state_dict(self.net, self.optimizer)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        set_optimizer_state_dict(self.net, self.optimizer, state_dict)


def named(net: nn.Module, optimizer: Any) -> Stateful:
    kind = DualState if isinstance(optimizer, DualOptimizer) else Named
    return kind(net, optimizer)


class Memory:
    """A copy of `state_dict()`."""

    def __init__(self, net: nn.Module, optimizer: Any, folder: str) -> None:
        self.saved = copy.deepcopy(optimizer.state_dict())

    def load(self, net: nn.Module, optimizer: Any) -> None:
        optimizer.load_state_dict(self.saved)


class File(Memory):
    """`state_dict()` through a file that may hold no code."""

    def __init__(self, net: nn.Module, optimizer: Any, folder: str) -> None:
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        self.saved = torch.load(file, weights_only=True)


class Distributed:
    """`torch.distributed.checkpoint`, in one process."""

    def __init__(self, net: nn.Module, optimizer: Any, folder: str) -> None:
        self.folder = folder
        with notes_ignored():
            dcp.save({"optimizer": named(net, optimizer)}, checkpoint_id=folder)

    def load(self, net: nn.Module, optimizer: Any) -> None:
        with notes_ignored():
            dcp.load({"optimizer": named(net, optimizer)}, checkpoint_id=self.folder)


@contextmanager
def notes_ignored() -> Iterator[None]:
    """In one process torch notes that it is one, and that it writes where it has written before."""
    with warnings.catch_warnings():
        for note in ("torch.distributed is", "TypedStorage is deprecated", "Detected an existing"):
            warnings.filterwarnings("ignore", message=note)
        yield


WAYS: dict[str, Any] = {"memory": Memory, "file": File, "distributed": Distributed}


def resumes(make: Make, wrapper: str, way: str, folder: str) -> bool:
    """True if training goes on as if it had never stopped."""
    wrap = partial(WRAPPERS[wrapper], make)
    net, other = model(), model()
    optimizer = wrap(net)
    train(net, optimizer, range(3))
    saved, weights = WAYS[way](net, optimizer, folder), copy.deepcopy(net.state_dict())
    train(net, optimizer, range(3, 6))
    resumed = wrap(other)
    other.load_state_dict(weights)
    saved.load(other, resumed)
    train(other, resumed, range(3, 6))
    return torch.equal(theta(other), theta(net))
