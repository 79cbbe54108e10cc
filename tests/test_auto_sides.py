"""mu="auto" between the two sides of a `DualOptimizer`."""

import io
from typing import Any, Literal

import pytest
import torch
from torch.optim import SGD, Adam

from torch_alm import ALMConstraint, DualOptimizer, ReverseSAM
from torch_alm._constraint.rates import Rates
from torch_alm._constraint.response import Sides

WIDE = torch.float64
Scale = Literal["gradient", "step"]


class Pair:
    """min |theta - 2|^2 subject to the sum of two entries being at least 8; lambda is 4."""

    def __init__(self, make: Any = SGD, scale: Scale = "gradient", *, last: bool = False) -> None:
        self.theta = torch.zeros(2, dtype=WIDE, requires_grad=True)
        self.constraint = ALMConstraint(None, 8.0, "auto")
        self.last, self.goal = last, 2
        self.optimizer = DualOptimizer(
            make([self.theta], lr=0.05), make([self.theta], lr=0.05), self.constraint, scale=scale
        )

    def run(self, steps: int) -> "Pair":
        for _ in range(steps):
            self.optimizer.backward(
                retain=lambda: (self.theta - self.goal).square().sum(),
                forget=lambda: self.theta.sum(),
                last=self.last,
            )
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self


def test_two_plain_descents_are_one_with_a_penalty() -> None:
    pair = Pair().run(150)
    theta = torch.zeros(2, dtype=WIDE, requires_grad=True)
    optimizer = SGD([theta], lr=0.05)
    constraint = ALMConstraint(lambda: theta.sum(), 8.0, "auto")
    constraint.attach(optimizer)
    for _ in range(150):
        optimizer.zero_grad()
        ((theta - 2).square().sum() + constraint()).backward()
        optimizer.step()
    torch.testing.assert_close(pair.theta, theta, rtol=1e-9, atol=1e-9)
    mine, theirs = pair.constraint.state_dict(), constraint.state_dict()
    torch.testing.assert_close(mine["auto"], theirs["auto"], rtol=1e-9, atol=1e-9)
    assert constraint.multiplier > 0


def test_a_small_weight_does_not_shorten_a_step_that_is_needed() -> None:
    """All of the forget step is made where less would not do; lambda says whether, not how far."""
    pair = Pair(SGD, "step")
    pair.constraint.multiplier = 1e-3
    pair.run(1)
    assert pair.theta.tolist() == pytest.approx([0.05 * 4 + 0.05] * 2, rel=1e-12)


@pytest.mark.parametrize("made", [1.0, 0.05])
def test_what_falls_by_a_part_of_what_is_foretold_is_met_and_not_overrun(made: float) -> None:
    """A measure that flattens out; a step that is foretold to end it would leave 95 % each time."""
    rates, steps, seen = Rates(), Sides(gain=3.0, drift=0.2, forget=1.0, retain=1.0), [1.0]
    for _ in range(40):
        rates.step(seen[-1], seen=True, response=None)
        share = rates.aim(steps, weight=0.5)
        assert 0 <= share <= 1
        seen.append(seen[-1] - made * (3.0 * share - 0.2))
    assert abs(seen[-1]) < 0.01 and min(seen) > -0.02


def test_a_closed_gate_stays_closed_where_the_retain_step_leads_out() -> None:
    pair = Pair(SGD, "step")
    pair.theta.data.fill_(4.1)  # met, and on the way back to where it is not
    pair.run(1)
    assert pair.theta.tolist() == pytest.approx([4.1 - 0.05 * 4.2] * 2, rel=1e-12)


def test_a_resumed_pair_is_the_one_that_never_stopped() -> None:
    whole, first, second = (
        Pair(Adam, "step").run(90),
        Pair(Adam, "step").run(47),
        Pair(Adam, "step"),
    )
    saved = io.BytesIO()
    torch.save([first.optimizer.state_dict(), first.theta.detach()], saved)
    saved.seek(0)
    state, theta = torch.load(saved, weights_only=True)
    second.optimizer.load_state_dict(state)
    second.theta.data.copy_(theta)
    assert torch.equal(second.run(43).theta, whole.theta)
    assert second.constraint.state_dict()["auto"] == whole.constraint.state_dict()["auto"]


def test_the_most_forgiving_point_is_no_obstacle() -> None:
    pair = Pair()
    base = SGD([pair.theta], lr=0.05)
    pair.optimizer = DualOptimizer(base, ReverseSAM(SGD([pair.theta], lr=0.05)), pair.constraint)
    found = pair.run(1000).theta.sum().item()
    assert found == pytest.approx(8.0 + 0.05 * 2**0.5, rel=0.01)  # measured 0.05 away


class Fails(SGD):
    """Plain descent that runs out of memory where it is told to."""

    is_full = False

    def step(self, closure: None = None) -> None:
        if self.is_full:
            raise MemoryError
        super().step(closure)


@pytest.mark.parametrize("make", [SGD, Adam])
@pytest.mark.parametrize("scale", ["gradient", "step"])
def test_a_spared_backward_changes_nothing_of_the_rule(make: Any, scale: Scale) -> None:
    """The goal moves to and fro: the gate opens and closes."""
    full, spared = (Pair(make, scale, last=last) for last in (False, True))
    closed = 0
    for goal in (2, 6, 2, 6, 2):
        for pair in (full, spared):
            pair.goal = goal
            pair.run(40)
        closed += full.constraint.weight == 0
        assert torch.equal(full.theta, spared.theta)
        assert full.constraint.state_dict() == spared.constraint.state_dict()
    assert closed
