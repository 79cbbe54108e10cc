"""Measuring a released constraint: seldom while it is far from alpha, and in time."""

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn
from torch.optim import SGD

from tests.machine_dual import pause
from torch_alm import ALMConstraint, DualOptimizer
from torch_alm._optim.forecast import Forecast
from torch_alm._optim.gate import Gate
from torch_alm.filters import Mean

LATEST = 15  # steps for which a violation can stay unseen
LONG = 400


def plain(_: ALMConstraint) -> type[float]:
    """A weight is not aimed where mu is given."""
    return float


def measures(gate: Gate, constraint: ALMConstraint) -> bool:
    """Begin a step, and tell whether it measures."""
    gate.begin(constraint)
    return gate.measures


def probed(violations: Sequence[float], probe_every: int | str = "auto") -> list[int]:
    """Steps that measure, up to the first that sees a violation, while c goes this way."""
    gate, constraint, found = Gate(probe_every), ALMConstraint(None, alpha=0.0, mu=1.0), []
    for step, c in enumerate(violations):
        if measures(gate, constraint):
            found.append(step)
            constraint.observe(-c)
        if gate.commit(constraint, plain) > 0:
            break
    return found


def late(violations: Sequence[float]) -> int:
    """Steps between the first violation and the first that is seen."""
    return probed(violations)[-1] - next(i for i, c in enumerate(violations) if c > 0)


def walk(seed: int) -> list[float]:
    """Drift towards the constraint from far inside, at most 0.1 per step, and stay there."""
    draw = random.Random(seed)
    drift, found = draw.uniform(0.005, 0.04), [-draw.uniform(0.2, 2.0)]
    while found[-1] <= 0:
        found.append(found[-1] + max(-0.1, min(0.1, draw.gauss(drift, 0.05))))
    return [*found, *[found[-1]] * LATEST]


def noisy(seed: int) -> list[float]:
    """A measure that stays met on average, with the noise of minibatches on it."""
    draw = random.Random(seed)
    return [-1.0 + draw.gauss(0.0, 0.2) for _ in range(LONG)]


def test_a_violation_never_stays_unseen_for_more_than_fifteen_steps() -> None:
    found = [late(walk(seed)) for seed in range(60)]
    assert all(0 <= steps <= LATEST for steps in found)
    assert max(found) > 0, "some are seen late, or nothing was spared"


@pytest.mark.parametrize("seed", range(40))
def test_a_violation_is_seen_at_once_if_the_approach_does_not_more_than_double(seed: int) -> None:
    """Between two measurements c moves by up to twice what it did per step before them."""
    draw = random.Random(seed)
    gate, constraint = Gate("auto"), ALMConstraint(None, alpha=0.0, mu=1.0)
    c, speed, steps, measured = -draw.uniform(0.1, 1.0), draw.uniform(0.001, 0.01), 0, 0
    while c <= 0:
        is_measured = measures(gate, constraint)
        if is_measured:
            constraint.observe(-c)
        gate.commit(constraint, plain)
        if is_measured and measured >= 1:
            speed *= draw.choice((0.5, 1.0, 1.0, 2.0))
        measured, steps = measured + is_measured, steps + 1
        c += speed
    assert measures(gate, constraint), "in the first step that is violated"
    assert measured < steps or steps < 20


@pytest.mark.parametrize(("way", "share"), [(noisy, 0.4), (lambda _: [-1.0] * LONG, 0.07)])
def test_a_constraint_far_from_alpha_is_measured_seldom(
    way: Callable[[int], list[float]], share: float
) -> None:
    for seed in range(20):
        assert len(probed(way(seed))) <= share * LONG


@pytest.mark.parametrize("seed", range(20))
def test_the_next_measurement_is_where_the_formula_says(seed: int) -> None:
    draw, forecast, probes = random.Random(seed), Forecast(), list[tuple[int, float]]()
    step, slack = 0, draw.uniform(0.5, 2.0)
    for _ in range(30):
        probes.append((step, slack))
        gap = None if len(probes) == 1 else step - probes[-2][0]
        forecast.update(slack, gap)
        assert forecast.interval == pause(probes)
        step += forecast.interval
        slack += draw.gauss(-0.01, 0.05) * forecast.interval


def test_every_step_measures_until_two_values_are_known() -> None:
    assert probed([-1.0] * 40) == [0, 1, 17, 33]


def test_every_step_measures_close_to_alpha() -> None:
    assert probed([-8.0, -4.0, -3.9, -3.0]) == [0, 1, 2, 3], "half of the way of 4 a step"
    draw = random.Random(0)
    violations = [min(draw.gauss(-0.5, 0.2), -0.01) for _ in range(10 * LONG)]
    measured = probed(violations)
    near = [step for step in measured[3:-1] if violations[step] > -0.03]
    assert near and all(step + 1 in measured for step in near), "within half of a usual miss"


def test_the_gate_open_again_forgets_what_was_forecast() -> None:
    gate, constraint = Gate("auto"), ALMConstraint(None, alpha=0.0, mu=1.0)
    measured = []
    for c in [-1.0] * 3 + [1.0] * 16 + [-3.0] * 20:
        measured.append(measures(gate, constraint))
        if gate.measures:
            constraint.observe(-c)
        gate.commit(constraint, plain)
    assert measured[2:17] == [False] * 15
    assert measured[17:21] == [True] * 4, "violated twice, released, and known twice"
    assert not any(measured[21:36])


def test_a_filter_is_forecast_as_the_gate_sees_it() -> None:
    violations = [-1.0 + 0.9 * (-1) ** step for step in range(64)]
    gate = Gate("auto")
    constraint, count = ALMConstraint(None, alpha=0.0, mu=1.0, filter=Mean(2)), 0
    for c in violations:
        if measures(gate, constraint):
            constraint.observe(-c)
            count += 1
        gate.commit(constraint, plain)
    assert count < 20


def test_an_equality_is_met_on_neither_side() -> None:
    gate = Gate("auto")
    constraint = ALMConstraint(None, alpha=0.0, mu=0.0, sense="==")
    for value in [3.0] * 10:
        assert measures(gate, constraint)
        constraint.observe(value)
        gate.commit(constraint, plain)


def test_a_measurement_that_is_not_finite_is_taken_again() -> None:
    gate, constraint = Gate("auto"), ALMConstraint(None, alpha=0.0, mu=1.0)
    for value in (2.0, float("nan"), 2.0, 2.0):
        assert measures(gate, constraint)
        constraint.observe(value)
        if value != value:
            with pytest.warns(UserWarning, match="not finite"):
                gate.commit(constraint, plain)
        else:
            gate.commit(constraint, plain)
    assert not measures(gate, constraint)


def test_seldom_is_the_default_and_one_is_algorithm_1() -> None:
    theta = nn.Parameter(torch.ones(1))
    counts = {}
    for given in ({}, {"probe_every": "auto"}, {"probe_every": 1}):
        constraint = ALMConstraint(None, alpha=-5.0, mu=1.0)
        sides = SGD([theta], lr=0.1), SGD([theta], lr=0.1)
        optimizer = DualOptimizer(*sides, constraint, **given)
        for _ in range(20):
            optimizer.backward(retain=lambda: 0 * theta.sum(), forget=lambda: theta.sum())
            optimizer.step()
            optimizer.zero_grad()
        counts[str(given)] = constraint.metrics()["steps"]
    assert [*counts.values()] == [3, 3, 20]
