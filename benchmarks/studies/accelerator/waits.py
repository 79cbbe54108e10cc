"""Section 7: one wait a step, for the constraint's value, and none while theta moves."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from benchmarks.studies.accelerator.checks import Check, Place, Seen, check
from benchmarks.studies.accelerator.waiting import profiled, stand_in, warned
from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM, perturbed
from torch_alm.measures import token_nll

SHAPES = ((64, 64), (64,), (1,))


class Kind(NamedTuple):
    """A step, and how often the host has to wait in it.

    `events` are waits for a copy that is under way: free where a wait for the constraint's value
    comes between. Tensors without data know neither an exchange of memory nor a plain `copy_`.
    """

    name: str
    make: Callable[[World], Callable[[], None]]
    waits: int
    events: int = 0
    has_stand_in: bool = True


class World:
    """Parameters and objectives, of numbers or of none.

    autograd has no device to run on where there is none, so there gradients are put by hand.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, *, is_real: bool) -> None:
        self.is_real = is_real
        make = lambda shape: torch.full(shape, 0.5, device=device, dtype=dtype)  # noqa: E731
        self.params: list[Tensor] = [nn.Parameter(make(shape)) for shape in SHAPES]
        # In float64 alpha need not be rounded to it: without data every number reads as 1.
        self.value = torch.full((), 1.0, device=device, dtype=torch.float64)
        self.handle = torch.zeros((), requires_grad=True)

    def loss(self) -> Tensor:
        """Compute a loss that can be differentiated."""
        if not self.is_real:
            return self.handle * 1.0
        return torch.stack([p.float().square().sum() for p in self.params]).sum()

    def forget(self) -> tuple[Tensor, Tensor]:
        """Compute a loss with a value that lies on the device."""
        return self.loss(), self.value

    def backward(self, loss: Tensor) -> None:
        """Gradients, autograd's or made."""
        if self.is_real:
            loss.backward()
            return
        for p in self.params:
            p.grad = torch.ones_like(p) if p.grad is None else p.grad + 1


def sam(world: World) -> Callable[[], None]:
    """SAM alone needs no number on the host."""
    optimizer = SAM(AdamW(world.params), rho=0.05, backward=world.backward)
    return stepping(optimizer, partial(optimizer.backward, world.loss))


def dual(
    world: World, *, alpha: float, perturbs: bool = True, last: bool = False, **settings: Any
) -> Callable[[], None]:
    """SAUL, or Dual AdamW with a constraint."""
    sides: Any = AdamW(world.params), AdamW(world.params, weight_decay=0.0)
    if perturbs:
        sides = SAM(sides[0], rho=0.05), ReverseSAM(sides[1], rho=0.05)
    constraint = ALMConstraint(None, alpha=alpha, mu=1e-3)
    settings = {"probe_every": 1, "backward": world.backward, **settings}
    optimizer = DualOptimizer(*sides, constraint, **settings)
    backward = partial(optimizer.backward, retain=world.loss, forget=world.forget, last=last)
    return stepping(optimizer, backward)


def penalised(world: World) -> Callable[[], None]:
    optimizer = SGD(world.params, lr=0.1)
    constraint = ALMConstraint(lambda: world.value, alpha=2.0, mu=1e-3)

    def step() -> None:
        constraint()  # whose gradient is 0: the value is a number of its own
        world.backward(world.loss())
        optimizer.step()
        optimizer.zero_grad()
        constraint.step()

    return step


def visit(world: World, **settings: Any) -> Callable[[], None]:

    def run() -> None:
        for p in world.params:
            p.grad = torch.ones_like(p)
        with perturbed(world.params, 0.05, **settings):
            pass

    return run


def stepping(optimizer: Any, backward: Callable[[], Any]) -> Callable[[], None]:
    def step() -> None:
        backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


OPEN, CLOSED = 1e3, -1e3
KINDS = (
    Kind("`perturbed`", visit, 0),
    Kind("`perturbed`, ASAM", partial(visit, adaptive=True), 0),
    Kind("`perturbed`, stochastic rounding", partial(visit, rounding="stochastic"), 0),
    Kind("`perturbed`, swap", partial(visit, swap=True), 0, has_stand_in=False),
    Kind("SAM", sam, 0),
    Kind("a constraint in the loss", penalised, 1),
    Kind("Dual AdamW + ALM, gate open", partial(dual, alpha=OPEN, perturbs=False), 1, 1),
    Kind("SAUL, gate open", partial(dual, alpha=OPEN), 1, 1),
    Kind("SAUL, gate closed", partial(dual, alpha=CLOSED), 1),
    Kind("SAUL, gate open, last=True", partial(dual, alpha=OPEN, last=True), 1, 1),
    Kind("SAUL, gate closed, last=True", partial(dual, alpha=CLOSED, last=True), 1),
    Kind(
        'SAUL, lambda+ above 1, scale="step"', partial(dual, alpha=1e4, scale="step"), 2, 1, False
    ),
)


def checks(place: Place) -> list[Check]:
    """Each kind in every way of counting that there is."""
    ways = {"CUDA's own warnings": warned, "the profiler": profiled} if place.is_cuda else {}
    found = [
        Check(f"{kind.name}: {name}", partial(on_device, kind=kind, counter=counter))
        for kind in KINDS
        for name, counter in ways.items()
    ]
    return (
        found
        + [
            Check(f"{kind.name}: on tensors without data", partial(counted, kind=kind))
            for kind in KINDS
            if kind.has_stand_in
        ]
        + [Check("`token_nll` itself", of_a_measure)]
    )


def on_device(place: Place, kind: Kind, counter: Callable[[], Any]) -> Seen:
    """Two steps to make moments and look at the dtype, then one that is counted."""
    world = World(place.device, torch.float32, is_real=True)
    with quiet():
        step = kind.make(world)
        for _ in range(2):
            step()
        torch.cuda.synchronize()
    with counter() as found:
        step()
    return judged(kind, found)


def counted(_: Place, kind: Kind) -> Seen:
    """Count on a device that is not there."""
    with stand_in() as found, quiet():
        world = World(torch.device("cuda"), torch.float32, is_real=False)
        step = kind.make(world)
        for _ in range(2):
            step()
        found.clear()
        step()
    return judged(kind, found)


def of_a_measure(place: Place) -> Seen:
    """Count the waits of `token_nll`: the device alone knows which tokens are labelled."""
    place.need_cuda("what a measure waits for")
    logits = torch.zeros(2, 6, 9, device=place.device)
    labels = torch.zeros(2, 6, device=place.device, dtype=torch.long)
    with warned() as found:
        token_nll(
            lambda **_: SimpleNamespace(logits=logits), {"input_ids": labels, "labels": labels}
        )
    return {"waits": len(found), "in": ", ".join(sorted(set(found)))}


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings about tensors of no data."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def judged(kind: Kind, found: list[str]) -> Seen:
    """At most so many waits, and waits for copies under way, as the kind has."""
    events = [name for name in found if name in ("event", "cudaEventSynchronize")]
    waits = [name for name in found if name not in events]
    check(len(waits) == kind.waits, f"waits {len(waits)} times, not {kind.waits}: {waits}")
    check(len(events) <= kind.events, f"waits for {len(events)} copies, not {kind.events}")
    return {"waits": len(waits), "for copies under way": len(events)}
