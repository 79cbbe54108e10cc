"""Gradients taken apart before one step lose no measurement, and a skipped SAM step leaves none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import SGD, AdamW

from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM

STEPS = 5


class Weight:
    """One weight, measured as it is."""

    def __init__(self) -> None:
        self.x = torch.zeros(1, requires_grad=True)
        self.seen: list[float] = []
        self.constraint = ALMConstraint(self.measure, alpha=1.0, mu=0.5)

    def measure(self, shift: float = 0.0) -> Tensor:
        self.seen.append(self.x.item() + shift)
        return self.x[0] + shift

    def take(self) -> Tensor:
        gradient, self.x.grad = self.x.grad, None
        assert gradient is not None
        return gradient


def assert_every_step_is_the_mean_of_its_measurements(
    weight: Weight, steps: Callable[[], Any], parts: int
) -> None:
    for step in range(1, STEPS + 1):
        weight.seen.clear()
        steps()
        found = weight.constraint.metrics()
        assert found["steps"] == step and len(weight.seen) == parts
        assert found["value"] == pytest.approx(sum(weight.seen) / parts, abs=1e-6)
    assert weight.constraint.multiplier > 0


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("order", ["penalty first", "retain first", "both forwards first"])
def test_two_gradients_taken_apart_by_hand(order: str, parts: int) -> None:
    weight = Weight()
    optimizer = SGD([weight.x], lr=0.1)
    weight.constraint.attach(optimizer)

    def step() -> None:
        sums = {"penalty": torch.zeros(1), "retain": torch.zeros(1)}
        for part in range(parts):
            losses = {
                "penalty": lambda part=part: weight.constraint(-float(part)),
                "retain": lambda: weight.x.square().sum(),
            }
            names = list(losses)[:: -1 if order == "retain first" else 1]
            if order == "both forwards first":
                graphs = {name: losses[name]() for name in names}
                losses = {name: lambda name=name, g=graphs: g[name] for name in names}
            for name in names:
                losses[name]().backward()
                sums[name] += weight.take()
        weight.x.grad = sums["penalty"] + sums["retain"]
        optimizer.step()
        optimizer.zero_grad()

    assert_every_step_is_the_mean_of_its_measurements(weight, step, parts)


def sides(x: Tensor, kind: str) -> DualOptimizer:
    first, second = SGD([x], lr=0.1), SGD([x], lr=0.1)
    if kind == "SAM":
        return DualOptimizer(SAM(first, rho=0.0), ReverseSAM(second, rho=0.0))
    return DualOptimizer(first, second)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("where", ["retain", "forget", "both"])
@pytest.mark.parametrize("kind", ["plain", "SAM"])
def test_a_second_constraint_inside_the_objectives_of_a_dual_optimizer(
    kind: str, where: str, parts: int
) -> None:
    weight = Weight()
    dual = sides(weight.x, kind)
    weight.constraint.attach(dual)

    def objective(side: str) -> Tensor:
        loss = weight.x.square().sum()
        shift = -2.0 if side == "forget" else 0.0
        return loss + weight.constraint(shift) if where in (side, "both") else loss

    def step() -> None:
        for _ in range(parts):
            dual.backward(retain=lambda: objective("retain"), forget=lambda: objective("forget"))
        dual.step()
        dual.zero_grad()

    count = parts * (2 if where == "both" else 1) * (2 if kind == "SAM" else 1)  # first passes
    assert_every_step_is_the_mean_of_its_measurements(weight, step, count)


def test_each_gradient_of_a_step_may_have_a_measurement_of_its_own() -> None:
    weight = Weight()
    optimizer = SGD([weight.x], lr=0.0)
    weight.constraint.attach(optimizer)
    values = []
    for _ in range(STEPS):
        for part in range(3):
            optimizer.zero_grad()
            weight.constraint(3.0 * part).backward()
        optimizer.step()
        optimizer.zero_grad()
        values.append(weight.constraint.metrics()["value"])
    assert values == [3.0] * STEPS


BASES: dict[str, Callable[[list[Tensor]], Any]] = {
    "SGD": lambda p: SGD(p, lr=0.1),
    "AdamW": lambda p: AdamW(p, lr=0.1),
    "AdamW, fused": lambda p: AdamW(p, lr=0.1, fused=True),
}


@pytest.mark.parametrize("followed", ["outermost", "base"])
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("parts", [1, 2])
def test_a_skipped_sam_step_leaves_no_trace_wherever_one_is_attached(
    parts: int, base: str, followed: str
) -> None:
    x = torch.zeros(1, requires_grad=True)
    inner = BASES[base]([x])
    outer = SAM(inner, rho=0.01)
    scaler = GradScaler("cpu", init_scale=4.0)
    outer.backward_fn = lambda loss: scaler.scale(loss).backward()
    constraint = ALMConstraint(None, alpha=1.0, mu=0.5)
    constraint.attach(inner if followed == "base" else outer)

    def objective(value: float) -> Tensor:
        constraint.observe(value)
        return x.sum() * (torch.inf if value == 5.0 else 1.0)

    found = []
    for value in (1.0, 5.0, 1.0):
        for _ in range(parts):
            outer.backward(lambda value=value: objective(value))
        scaler.step(outer)
        scaler.update()
        outer.zero_grad()
        found.append((constraint.metrics()["steps"], constraint.metrics()["value"]))
    assert found == [(1, 1.0), (1, 1.0), (2, 1.0)]


def test_a_removed_attachment_hears_of_no_skipped_step() -> None:
    x = torch.zeros(1, requires_grad=True)
    base = SGD([x], lr=0.1)
    outer = SAM(base, rho=0.0)
    constraint = ALMConstraint(None, alpha=1.0, mu=0.5)
    constraint.attach(base).remove()
    scaler = GradScaler("cpu", init_scale=4.0)
    outer.backward_fn = lambda loss: scaler.scale(loss).backward()
    constraint.observe(1.0)
    outer.backward(lambda: x.sum() * torch.inf)
    scaler.step(outer)
    assert constraint.observed == 1
