"""Metrics, statuses; and what a checkpoint must hold."""

import math
import random
from typing import Any

import pytest
import torch

from tests.core.following import constraint
from torch_alm import ALMConstraint
from torch_alm.filters import Mean
from torch_alm.rules import Cap


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
