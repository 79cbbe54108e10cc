"""Section 5: float16 autocast under a GradScaler."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD

from benchmarks.studies.accelerator import oracle, problem
from benchmarks.studies.accelerator.checks import (
    Check,
    Place,
    Seen,
    check,
    check_close,
    check_equal,
)
from torch_alm import SAM, ALMConstraint

SCALE = 1024.0
STEPS = 6


def checks(_: Place) -> list[Check]:
    """All of them run on a CPU, too, whose autocast knows float16."""
    return [
        Check("SAM under a scaler is SAM by hand without one", scaled),
        # which would take the scale itself, were it not inside another
        Check("SAM likewise with fused SGD inside", partial(scaled, fused=True)),
        Check("a skipped step leaves theta, moments and an attached constraint alone", skipped),
        Check("`attach` counts the steps that are taken", attached),
        Check("DualOptimizer refuses a scaler, and nothing has moved", refused),
    ]


def objective(net: nn.Module, place: Place, number: int) -> Callable[[], Tensor]:
    """The retain loss under float16 autocast."""
    retain, _ = problem.losses(net, place, number, torch.float32)

    def loss() -> Tensor:
        with torch.autocast(place.device.type, torch.float16):
            return retain()

    return loss


def new_scaler(place: Place) -> GradScaler:
    """With a power of two, which costs no digits."""
    return GradScaler(place.device.type, init_scale=SCALE, growth_interval=1000)


def sam(net: nn.Module, scaler: GradScaler, **settings: Any) -> SAM:
    """SAM over SGD, which takes the gradient's length seriously."""
    base = SGD(net.parameters(), lr=0.1, momentum=0.9, **settings)
    return SAM(base, rho=0.05, backward=lambda loss: scaler.scale(loss).backward())


def scaled(place: Place, **settings: Any) -> Seen:
    """Six steps; what is left of float16 is the rounding of scaled gradients."""
    mine, its = (problem.network(place, torch.float32) for _ in range(2))
    scaler = new_scaler(place)
    optimizer = sam(mine, scaler, **settings)
    base = SGD(its.parameters(), lr=0.1, momentum=0.9)
    for number in range(STEPS):
        optimizer.backward(objective(mine, place, number))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        theta = list(its.parameters())
        g, _ = oracle.grad_sam(objective(its, place, number), theta, 0.05)
        oracle.step(base, theta, g)
    return check_close(mine.parameters(), its.parameters(), 1e-4)


def skipped(place: Place) -> Seen:
    """Gradients beyond float16: the scaler halves its scale, and the next step goes on."""
    net = problem.network(place, torch.float32)
    scaler = new_scaler(place)
    optimizer = sam(net, scaler)
    constraint = ALMConstraint(None, alpha=10.0, mu=1.0)
    attachment = constraint.attach(optimizer)

    def step(number: int, spoiled: float) -> None:
        constraint.observe(float(number))
        loss = objective(net, place, number)
        optimizer.backward(lambda: loss() * spoiled)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    step(1, 1.0)
    before = [p.detach().clone() for p in net.parameters()]
    moments = [optimizer.state[p]["momentum_buffer"].clone() for p in net.parameters()]
    step(2, float("inf"))
    check_equal(list(net.parameters()), before, "theta after the skipped step")
    after = [optimizer.state[p]["momentum_buffer"] for p in net.parameters()]
    check_equal(after, moments, "the moments after the skipped step")
    check(scaler.get_scale() == SCALE / 2, f"the scale is {scaler.get_scale()}")
    check(constraint.multiplier == 9.0, f"lambda is {constraint.multiplier}, not 10 - 1")
    step(3, 1.0)
    check(constraint.multiplier == 16.0, f"lambda is {constraint.multiplier}, not 9 + 10 - 3")
    attachment.remove()
    return {"scale": scaler.get_scale()}


def attached(place: Place) -> Seen:
    """The constraint in the loss of one optimizer, stepped by its steps."""
    net = problem.network(place, torch.float32)
    optimizer, scaler = SGD(net.parameters(), lr=0.01), new_scaler(place)
    constraint = ALMConstraint(lambda loss: loss(), alpha=1e3, mu=1e-3)
    attachment = constraint.attach(optimizer)
    for number in range(STEPS):
        loss = objective(net, place, number)() + constraint(objective(net, place, 100 + number))
        scaler.scale(loss * (float("inf") if number == 2 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    attachment.remove()
    taken = constraint.metrics()["steps"]
    check(taken == STEPS - 1, f"{taken} steps were counted, and {STEPS - 1} taken")
    return {"lambda": constraint.multiplier}


def refused(place: Place) -> Seen:
    """A scaler would unscale one side only."""
    net = problem.network(place, torch.float32)
    scaler = new_scaler(place)
    optimizer = problem.dual(
        list(net.parameters()), backward=lambda loss: scaler.scale(loss).backward()
    )
    loss = objective(net, place, 0)
    optimizer.backward(retain=loss, forget=loss)
    before = [p.detach().clone() for p in net.parameters()]
    try:
        scaler.step(optimizer)
    except RuntimeError as error:
        check("GradScaler" in str(error) and "bfloat16" in str(error), f"it says {error}")
    else:
        raise AssertionError("DualOptimizer took a scaled step")
    check_equal(list(net.parameters()), before, "theta after the refusal")
    check(optimizer.constraint.multiplier == problem.MULTIPLIER, "lambda has moved")
    return {}
