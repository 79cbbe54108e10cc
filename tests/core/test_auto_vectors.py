"""mu="auto" of a vector: one mu per entry, for the backward passes of one."""

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adam

from torch_alm import ALMConstraint
from torch_alm.auto import Auto

WIDE = torch.float64


class Entries:
    """The nearest point to (1, 2, -1) with bounds on each entry, in units of their own."""

    units = torch.tensor([1.0, 2.0**12, 2.0**-9], dtype=WIDE)

    def __init__(self) -> None:
        self.theta = torch.zeros(3, dtype=WIDE, requires_grad=True)
        self.optimizer = Adam([self.theta], lr=0.02)
        alpha = self.units * torch.tensor([0.5, 1.0, 0.0])
        self.constraint = ALMConstraint(lambda: self.units * self.theta, alpha, "auto", sense="<=")
        self.constraint.attach(self.optimizer)

    def run(self, steps: int) -> "Entries":
        goal = torch.tensor([1.0, 2.0, -1.0], dtype=WIDE, device="cpu")
        for _ in range(steps):
            self.optimizer.zero_grad()
            ((self.theta - goal).square().sum() + self.constraint()).backward()
            self.optimizer.step()
        return self


def test_each_entry_of_a_vector_finds_its_own() -> None:
    loop = Entries().run(800)
    expected = torch.tensor([0.5, 1.0, -1.0], dtype=WIDE)  # the last bound does not act
    torch.testing.assert_close(loop.theta.detach(), expected, rtol=5e-3, atol=5e-3)
    scaled = loop.constraint.multiplier * loop.units
    torch.testing.assert_close(scaled, torch.tensor([1.0, 2.0, 0.0], dtype=WIDE), rtol=0.01, atol=0)
    assert len({*(loop.constraint.mu * loop.units**2).tolist()}) == 3 and loop.constraint.mu.all()


def test_a_default_device_is_not_where_the_memory_is() -> None:
    elsewhere, here = Entries(), Entries().run(30)
    with torch.device("meta"):
        elsewhere.run(30)
    assert torch.equal(elsewhere.theta, here.theta)


def test_one_entry_of_a_vector_is_differentiated_per_step() -> None:
    loop, passes = Entries(), 0

    def count(_: Tensor) -> None:
        nonlocal passes
        passes += 1

    measure = loop.constraint.measure

    def counted() -> Tensor:
        value = measure()
        value.register_hook(count)
        return value

    loop.constraint.measure = counted
    loop.run(120)
    assert passes == 120 + 60 + 3  # its own, those of the first steps, and every 20th later


def turn(count: int, size: int) -> int:
    auto = Auto()
    auto.expand(torch.Size([size]))
    auto.count = torch.full((size,), float(count))
    return int(auto.due_entry(torch.arange(size)))


def test_entries_take_turns_in_the_first_steps_and_later() -> None:
    assert [turn(count, 2) for count in (58, 59, 60, 80, 100)] == [0, 1, 1, 0, 1]
    assert turn(80, 100) == 80, "each has had its turn before it is a matter of every 20th step"


def test_an_entry_out_of_reach_does_not_hold_the_others() -> None:
    """The first two contradict each other; the third becomes harder after both are suspected."""
    theta = torch.zeros(2, dtype=WIDE, requires_grad=True)
    optimizer = SGD([theta], lr=0.02)
    constraint = ALMConstraint(
        lambda: torch.stack([theta[0], -theta[0], theta[1]]), torch.ones(3), "auto"
    )
    constraint.attach(optimizer)
    for step in range(1000):
        optimizer.zero_grad()
        goal = torch.tensor([0.0, -1.0 if step >= 700 else 0.0], dtype=WIDE)
        ((theta - goal).square().sum() / 2 + constraint()).backward()
        optimizer.step()
    assert constraint.metrics()["status"] == "suspected_infeasible"
    assert theta[1].item() == pytest.approx(1.0, abs=1e-3)
    multiplier = constraint.multiplier
    assert isinstance(multiplier, Tensor) and multiplier[2].item() == pytest.approx(2.0, rel=1e-3)
