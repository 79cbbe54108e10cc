"""Metrics, statuses; what a checkpoint must hold; and when a constraint is out of reach."""

import itertools
import json
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.core.following import constraint
from torch_alm import ALMConstraint
from torch_alm.filters import Mean
from torch_alm.rules import Cap, Hold, WarmUp


def follow(c: ALMConstraint, values: list[Any]) -> dict[str, Any]:
    for value in values:
        c.observe(value)
        c.step()
    return c.metrics()


def test_all_metrics_are_plain_numbers_or_a_word() -> None:
    c = constraint(alpha=torch.ones(2))
    for value in follow(c, [torch.zeros(2)]).values():
        assert type(value) in (int, float, str)


def test_every_status_in_a_life() -> None:
    c = constraint(rules=[Cap(5.0)], tolerance=0.1)
    assert c.metrics()["status"] == "unmeasured"
    c.observe(math.nan)
    with pytest.warns(UserWarning, match="not finite"):
        c.step()
    assert c.metrics()["status"] == "non_finite"
    assert follow(c, [0.0])["status"] == "violated"
    c.observe(math.inf)
    with pytest.warns(UserWarning, match="not finite"):
        c.step()
    assert c.metrics()["status"] == "non_finite"
    assert follow(c, [0.95])["status"] == "satisfied", "within the tolerance, and still pushed"
    released = follow(c, [9.0])
    assert released["status"] == "released" and released["active_share"] == 3 / 5
    assert follow(c, [-10.0])["status"] == "capped"
    assert follow(c, [1.0])["status"] == "satisfied", "met, wherever the multiplier is"


def test_a_checkpoint_is_loaded_in_a_run_with_another_window() -> None:
    noise = random.Random(0)
    c = constraint(filter=Mean(6))
    follow(c, [noise.gauss(0, 1) for _ in range(9)])
    shorter = constraint(filter=Mean(2))
    shorter.load_state_dict(c.state_dict())
    follow(shorter, [0.0, 3.0])
    assert shorter.metrics()["violation"] == pytest.approx(-0.5)
    for before, after, kept in ((6, 2, [3.0, 4.0]), (2, 6, [0.0, 3.0, 4.0])):
        c, other = (constraint(filter=Mean(w), alpha=torch.ones(2)) for w in (before, after))
        follow(c, [torch.full((2,), v) for v in (9.0, 0.0, 3.0)])
        other.load_state_dict(c.state_dict())
        violation = follow(other, [torch.full((2,), 4.0)])["violation"]
        assert violation == pytest.approx(1 - sum(kept) / len(kept))


@pytest.mark.parametrize("sense", [">=", "<=", "=="])
@pytest.mark.parametrize(("alpha", "unit"), [(50.0, 50.0), ([0.0, 50.0], [1.0, 0.0])], ids=str)
def test_a_violation_of_rounding_is_not_called_one(alpha: Any, unit: Any, sense: Any) -> None:
    """The multiplier follows it all the same; at an alpha of 0 it is measured in ones."""
    level, units = (torch.tensor(each, dtype=torch.float64) for each in (alpha, unit))
    for size, status in ((1e-7, "satisfied"), (1e-5, "violated")):
        c = ALMConstraint(None, alpha=alpha, mu=1.0, sense=sense)
        c.observe(level + (size if sense == "<=" else -size) * units)
        torch.testing.assert_close(torch.as_tensor(c.step()).double(), size * units)
        assert c.metrics()["status"] == status


@pytest.mark.parametrize(
    ("given", "last"), [({"rules": [Cap(0.5)]}, 0.0), ({"tolerance": 1.0}, -0.5)]
)
def test_steps_that_do_not_push_do_not_count_as_growing_pressure(given: Any, last: float) -> None:
    """Steps at the limit of a rule, and steps within the tolerance."""
    c = constraint(**given)
    follow(c, [0.0] * 300)
    c.rules = ()
    assert follow(c, [last])["status"] == "violated"


def test_what_is_discarded_or_lies_before_a_checkpoint_is_no_measurement() -> None:
    c = constraint()
    state = c.state_dict()
    for forget in (c.discard, lambda: c.load_state_dict(state)):
        c.observe(-50.0)
        assert c.observed == 1
        forget()
        assert c.observed == 0
    assert follow(c, [1.0])["value"] == 1.0


SUSPECTED = "suspected_infeasible"


def equality(**given: Any) -> ALMConstraint:
    return ALMConstraint(None, **{"alpha": 0.0, "mu": 1e-3, "sense": "==", **given})


def suspicions(c: ALMConstraint, values: Any) -> list[bool]:
    """After each step, whether the constraint is suspected to be out of reach."""
    found = []
    for value in values:
        c.observe(value)
        c.step()
        found.append(c.metrics()["status"] == SUSPECTED)
    return found


def run_at_the_end(values: list[float]) -> list[float]:
    """The sizes of the latest values, back to the last one of another sign."""
    signs = [(v > 0) - (v < 0) for v in values]
    same = itertools.takewhile(lambda s: s == signs[-1] != 0, reversed(signs))
    return [abs(v) for v in values[len(values) - len(list(same)) :]]


def pressures(values: list[float], every: int, mu: float = 1e-3) -> list[float]:
    """|lambda+| of each step, for an equality at 0."""
    multiplier, found = 0.0, list[float]()
    for step, value in enumerate(values, 1):
        weight = multiplier - mu * value
        multiplier = multiplier if step % every else weight
        found.append(abs(weight))
    return found


def out_of_reach(values: list[float], every: int) -> bool:
    """Of stretches that end after 2, 4, 8 ... units, the last two that are complete.

    A unit is 64 steps or 8 updates. The second has to be less than a tenth smaller on average, and
    the pressure at its end more than a tenth larger.
    """
    run, ends = run_at_the_end(values), [max(64, 8 * every)]
    while 2 * ends[-1] <= len(run):
        ends.append(2 * ends[-1])
    means = [sum(run[a:b]) / (b - a) for a, b in itertools.pairwise(ends)]
    pressure = pressures(values, every)[len(values) - len(run) :]
    has_grown = len(means) > 1 and pressure[ends[-2] - 1] < 0.9 * pressure[ends[-1] - 1]
    return has_grown and 0 < 0.9 * means[-2] < means[-1]


def wandering(seed: int, steps: int) -> Iterator[float]:
    """Stretches of one sign, of none, or of both, at levels that fall or stay."""
    noise = random.Random(seed)
    while steps > 0:
        length = min(steps, noise.choice([3, 70, 200, 300, 700]))
        level, side, fall = noise.uniform(0.1, 9), noise.choice([-1, -1, 1, 1, 0]), noise.random()
        for i in range(length):
            yield -side * level * (1 - 0.9 * fall * i / length) * noise.uniform(0.8, 1)
        steps -= length


@pytest.mark.parametrize(("every", "seed"), [(1, 0), (1, 1), (1, 2), (13, 4)])
def test_it_is_suspected_when_a_stretch_is_hardly_better_than_the_one_before(
    every: int, seed: int
) -> None:
    values = list(wandering(seed, 2500))
    found = suspicions(equality(every=every), values)
    steps = [*range(0, 2500, 9), *(i for i in range(1, 2500) if found[i] != found[i - 1])]
    assert [found[i] for i in steps] == [out_of_reach(values[: i + 1], every) for i in steps]
    assert any(found) and not all(found)


@pytest.mark.parametrize("rules", [[WarmUp(1000)], [Hold(1.0)]], ids=str)
def test_pressure_that_does_not_grow_shows_nothing(rules: Any) -> None:
    c = ALMConstraint(None, alpha=1.0, mu=0.1, multiplier=0.5, rules=rules)
    assert not any(suspicions(c, [0.0] * 900))


@pytest.mark.filterwarnings("ignore:.*not finite")
def test_steps_that_measured_nothing_are_not_counted() -> None:
    values = [-1.0, *[math.nan] * 3] * 260
    assert suspicions(equality(), values).index(True) == 4 * 255


def test_a_tenth_better_is_progress() -> None:
    values = [10.0] * 128 + [9.0] * 128
    assert not any(suspicions(equality(), values))
    assert suspicions(equality(), [*values[:-1], 9.001])[-1]


@pytest.mark.parametrize("stop", [1, 70, 129, 255, 300])
def test_a_resumed_run_remembers_for_how_long(stop: int) -> None:
    values = [-1.0] * 400
    whole, stopped, resumed = equality(), equality(), equality()
    suspicions(stopped, values[:stop])
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert suspicions(resumed, values[stop:]) == suspicions(whole, values)[stop:]


def rows(*columns: list[float]) -> list[torch.Tensor]:
    return [torch.tensor(row, dtype=torch.float64) for row in zip(*columns, strict=True)]


def test_each_entry_has_stretches_of_its_own() -> None:
    one = [-1000.0] * 150 + [0.0] * 500
    other = [0.0] + [-1.0] * 649
    found = suspicions(equality(alpha=torch.zeros(2)), rows(one, other))
    assert found.index(True) == 256, "violated since the second step"


def test_another_level_begins_a_new_run() -> None:
    c = equality()
    assert suspicions(c, [-1.0] * 256)[-1]
    c.alpha = 0.5
    assert suspicions(c, [-1.0] * 256).index(True) == 255
    c.alpha = 0.5
    assert suspicions(c, [-1.0])[-1], "the same once more is none"
