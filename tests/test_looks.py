"""A look: SAM's forward at theta tells whether the perturbed pass could find the gate open."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Optimizer

from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM
from torch_alm._optim.forecast import LATEST, Forecast
from torch_alm.filters import Mean

RHO = 0.5
slacks = st.floats(-10, 10)
drops = st.floats(0.01, 1.0)


class World:
    """F = slope * theta of one weight that nothing moves: RHO * slope less where it is perturbed.

    Every step is one in which a measurement is due.
    """

    def __init__(
        self,
        forget: Callable[[Optimizer], Optimizer] = lambda base: ReverseSAM(base, rho=RHO),
        sense: Any = ">=",
    ) -> None:
        self.theta = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
        self.constraint = ALMConstraint(None, alpha=0.0, mu=1.0, sense=sense)
        self.forwards = self.backwards = self.reshards = 0
        self.slope = 1.0
        self.optimizer = DualOptimizer(
            SGD([self.theta], lr=0.0),
            forget(SGD([self.theta], lr=0.0)),
            self.constraint,
            backward=self.backward,
            reshard=self.reshard,
        )

    def backward(self, loss: Tensor) -> None:
        self.backwards += 1
        loss.backward()

    def reshard(self) -> None:
        self.reshards += 1

    def forget(self) -> Tensor:
        self.forwards += 1
        return (self.slope * self.theta).sum()

    def step(self, value: float, micro: int = 1, **given: Any) -> tuple[int, int, float]:
        """One with F of this value at theta: the forget side's passes, and what it says F is."""
        self.theta.data.fill_(value / self.slope)
        self.forwards, self.backwards = 0, -micro  # those of the retain side
        self.optimizer._gate.forecast.interval = 1
        for _ in range(micro):
            losses = self.optimizer.backward(
                retain=lambda: 0.0 * self.theta.sum(), forget=self.forget, **given
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        return self.forwards, self.backwards, losses.forget.item()


MEASURED, LOOKED, NOTHING = (2, 2), (1, 0), (0, 0)


@given(
    slacks, drops, st.sampled_from((1, -1)), st.integers(0, LATEST), st.integers(1, LATEST),
    st.floats(0, 1),
)  # fmt: skip
def test_no_violation_is_overlooked_if_the_drop_grows_as_allowed(
    slack: float, size: float, sign: int, age: int, gap: int, growth: float
) -> None:
    """Of the allowed growth any share; the sign of a drop says nothing about the next."""
    forecast, drop = Forecast(), sign * size
    forecast.update(1.0, None, drop)
    forecast.age = age
    now = size * 2 ** (growth * (1 + (age + gap) / LATEST))
    if forecast.is_far(slack, gap):
        assert slack - now > 0
        forecast.look(slack, gap)
        assert forecast.slack == slack - drop and forecast.drop == drop
        assert forecast.age == age + gap
        assert age + gap + forecast.interval <= LATEST, "from measurement to measurement"
    else:
        assert age + gap >= LATEST or slack <= 2 ** (1 + (age + gap) / LATEST) * size
        assert forecast.age == age and forecast.slack == 1.0


@pytest.mark.parametrize("slack", [math.nan, -math.inf])
def test_what_is_not_known_is_not_far(slack: float) -> None:
    forecast = Forecast()
    forecast.update(1.0, None, 0.1)
    assert not forecast.is_far(slack, 1)
    forecast.update(1.0, 1, math.nan)
    assert not forecast.is_far(5.0, 1)


def test_a_look_is_one_forward_pass_and_the_constraint_does_not_hear_of_it() -> None:
    world = World()
    assert world.step(3.0) == (*MEASURED, pytest.approx(2.5))
    before, steps = str(world.constraint.state_dict()), world.constraint.metrics()["steps"]
    forwards, backwards, seen = world.step(3.0)
    assert (forwards, backwards) == LOOKED and math.isnan(seen)
    assert world.constraint.metrics()["steps"] == steps == 1
    assert str(world.constraint.state_dict()) == before and world.constraint.observed == 0
    assert world.reshards == 1, "what the forward gathered is let go"
    assert world.optimizer._gate.forecast.interval == LATEST - 1, "and measures then"


def test_the_gate_opens_in_the_step_in_which_a_look_finds_it_near() -> None:
    """At theta it is still met: by less than twice what the perturbation takes."""
    world = World()
    world.step(3.0)
    assert world.step(2.9)[:2] == LOOKED and world.step(1.5)[:2] == LOOKED
    assert world.step(0.4) == (*MEASURED, pytest.approx(-0.1))
    assert world.constraint.weight == pytest.approx(0.1)


def test_a_steeper_measure_is_seen_before_its_drop_has_doubled() -> None:
    world = World()
    world.step(3.0)
    world.slope = 1.9
    assert world.step(1.2)[:2] == LOOKED, "0.95 less at the perturbed point, and that is less"
    assert world.step(0.9)[:2] == MEASURED and world.constraint.weight > 0


@pytest.mark.parametrize("micro", [2, 3])
def test_one_of_several_micro_batches_says_too_little(micro: int) -> None:
    world = World()
    for _ in range(4):
        forwards, _, _ = world.step(3.0, micro=micro)
        assert forwards in (0, 2 * micro)
    assert world.step(3.0)[:2] != LOOKED, "the step before had several"


def test_a_drop_is_known_of_one_micro_batch_only() -> None:
    """The mean of several is another point than the one that the last of them was seen at."""
    world = World()
    world.step(3.0, micro=2)
    assert math.isnan(world.optimizer._gate.forecast.drop)
    world.step(3.0)
    assert world.optimizer._gate.forecast.drop == pytest.approx(RHO)


def test_a_step_of_several_is_told_by_the_one_before() -> None:
    world = World()
    world.step(3.0)
    world.step(3.0, micro=3)  # nothing has said that more were to come
    assert world.step(3.0, micro=3)[0] == 6


def test_a_resumed_loop_that_says_which_is_the_last_is_believed_again() -> None:
    """Its last step had one micro-batch, its next has four."""
    world, resumed = World(), World()
    world.step(3.0, last=True)
    resumed.optimizer.load_state_dict(world.optimizer.state_dict())
    resumed.theta.data.fill_(3.0)
    for i in range(4):
        resumed.optimizer.backward(
            retain=lambda: 0.0 * resumed.theta.sum(), forget=resumed.forget, last=i == 3
        )
    assert resumed.forwards == 8


def test_a_side_that_only_looks_leaves_the_gradient_that_was_there() -> None:
    theta = nn.Parameter(torch.ones(2))
    theta.grad = torch.tensor([3.0, 4.0])
    side = ReverseSAM(SGD([theta], lr=0.1), rho=RHO)
    seen = side.accumulate(lambda: 2 * theta.sum(), 1.0, None, ahead=lambda _: False)
    assert seen.loss == 4.0 and theta.grad.tolist() == [3.0, 4.0] and theta.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("sense", "slack"), [(">=", 2.0), ("<=", -2.0), ("==", -2.0)])
def test_the_slack_of_a_value_alone(sense: Any, slack: float) -> None:
    """Of 3.0 where 1.0 is asked for; an equation has none."""
    constraint = ALMConstraint(None, alpha=1.0, mu=1.0, sense=sense)
    assert constraint._slack_at(torch.tensor(3.0)) == slack
    assert constraint.observed == 0


def test_the_last_micro_batch_is_known_to_be_alone_if_it_is_the_first() -> None:
    world = World()
    assert world.step(3.0, last=True)[0] == 2
    world.optimizer._gate.batches = 3  # as if the step before had several
    assert world.step(3.0, last=True)[:2] == LOOKED


@pytest.mark.parametrize("says", ["last", "weight"])
def test_the_first_of_several_is_not_alone_because_the_step_before_was(says: str) -> None:
    """The end of an epoch: a step of what is left, then one of four micro-batches."""
    world = World()
    world.step(3.0, last=says == "last")
    world.theta.data.fill_(3.0)
    world.forwards = 0
    for i in range(4):
        given = {"last": i == 3} if says == "last" else {"weight": 0.25}
        world.optimizer.backward(
            retain=lambda: 0.0 * world.theta.sum(), forget=world.forget, **given
        )
    assert world.forwards == 8


def test_a_look_that_is_dropped_with_its_step_leaves_no_trace() -> None:
    world, other = World(), World()
    for each in (world, other):
        each.step(3.0)
    losses = world.optimizer.backward(retain=lambda: 0.0 * world.theta.sum(), forget=world.forget)
    assert losses.forget.isnan()
    world.optimizer.zero_grad()
    assert world.optimizer._gate.state() == {**other.optimizer._gate.state(), "batches": 1}
    world.optimizer.probe_every = 1
    assert world.step(3.0)[:2] == MEASURED


@pytest.mark.parametrize(
    "forget",
    [lambda base: base, lambda base: ReverseSAM(base, rho=RHO, every=9)],
    ids=["plain", "a delta that is used again"],
)
def test_without_a_pass_at_theta_there_is_no_look(forget: Callable[[Optimizer], Optimizer]) -> None:
    world = World(forget)
    world.step(-1.0)  # open, and a delta is found
    passes = [world.step(3.0)[:2] for _ in range(3)]
    assert LOOKED not in passes[:2] and passes[0] != NOTHING


def test_a_filter_judges_by_what_it_remembers_and_so_does_a_number() -> None:
    filtered, rhythmic = World(), World()
    filtered.constraint.filter = Mean(2)
    rhythmic.optimizer.probe_every = 1
    for world in (filtered, rhythmic):
        assert [world.step(3.0)[:2] for _ in range(2)] == [MEASURED] * 2


def test_a_filter_of_later_ends_the_looks() -> None:
    world = World()
    assert world.step(3.0)[:2] == MEASURED and world.step(2.5)[:2] == LOOKED
    world.constraint.filter = Mean(2)
    assert world.step(2.5)[:2] == MEASURED


def test_a_value_that_is_not_finite_is_measured_and_told() -> None:
    world = World()
    world.step(3.0)
    with pytest.warns(UserWarning, match="not finite"):
        world.step(math.nan)
    assert world.constraint.skipped == 1


def test_another_alpha_is_measured_and_not_only_looked_at() -> None:
    world = World()
    world.step(3.0)
    world.constraint.alpha = 0.5
    assert world.step(3.0)[:2] == MEASURED


def test_a_schedule_that_lowers_the_radius_costs_nothing() -> None:
    world = World()
    world.step(3.0)
    passes = []
    for i in range(1, 12):
        world.optimizer.forget.rho = RHO * (1 - i / 20)  # type: ignore[attr-defined]
        passes.append(world.step(3.0)[:2])
    assert passes == [LOOKED] * 11


@pytest.mark.parametrize("whose", ["side", "group"])
def test_a_larger_radius_is_measured_at_once(whose: str) -> None:
    """Within it the gate is open; the drop of the last measurement would hide that."""
    world = World()
    world.step(3.0)
    world.optimizer._gate.forecast.update(2.5, 1, 0.5)
    assert world.step(3.0)[:2] == LOOKED
    if whose == "side":
        world.optimizer.forget.rho = 4.0  # type: ignore[attr-defined]
    else:
        world.optimizer.forget.param_groups[0]["rho"] = 4.0
    assert world.step(3.0) == (*MEASURED, pytest.approx(-1.0))
    assert world.constraint.weight == pytest.approx(1.0)


def test_a_group_that_falls_back_on_a_larger_radius_is_measured_at_once() -> None:
    world = World()
    (group,) = world.optimizer.forget.param_groups
    group["rho"] = RHO / 5
    world.step(3.0)
    assert world.step(3.0)[:2] == LOOKED
    del group["rho"]
    assert world.step(3.0)[:2] == MEASURED


def test_a_rho_that_is_a_setting_of_the_base_hides_no_larger_radius() -> None:
    world = World(
        lambda base: ReverseSAM(Adadelta(base.param_groups[0]["params"], lr=0.0), rho=RHO)
    )
    world.step(3.0)
    assert world.step(3.0)[:2] == LOOKED
    world.optimizer.forget.rho = 4.0  # type: ignore[attr-defined]
    assert world.step(3.0)[:2] == MEASURED


@pytest.mark.parametrize("sense", [">=", "<="])
def test_both_senses_look(sense: str) -> None:
    world = World(lambda base: (ReverseSAM if sense == ">=" else SAM)(base, rho=RHO), sense)
    away = 3.0 if sense == ">=" else -3.0
    assert world.step(away)[:2] == MEASURED and world.step(away)[:2] == LOOKED


def test_a_resumed_run_looks_when_the_one_before_would_have() -> None:
    through, resumed = World(), World()
    values = [3.0, 2.9, 2.7, 2.2, 2.1, 1.6, 0.9, 0.6, 3.0, 2.0, 1.9, 1.8]
    expected = [through.step(value) for value in values[:3]]
    resumed.optimizer.load_state_dict(through.optimizer.state_dict())
    expected = [through.step(value) for value in values[3:]]
    found = [resumed.step(value) for value in values[3:]]
    assert str(found) == str(expected) and LOOKED in [passes[:2] for passes in found]


def test_a_checkpoint_of_before_there_were_looks_measures_first() -> None:
    world, resumed = World(), World()
    world.step(3.0)
    state = world.optimizer.state_dict()
    for name in ("batches", "drop", "age"):
        del state["gate"][name]
    resumed.optimizer.load_state_dict(state)
    assert resumed.step(3.0)[:2] == MEASURED and resumed.step(3.0)[:2] == LOOKED
