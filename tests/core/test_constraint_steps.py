"""What a step leaves behind where it fails or never comes, and what a filter keeps of alpha."""

import copy
import warnings
from typing import Any

import pytest

from torch_alm import ALMConstraint
from torch_alm.filters import EMA, Filter, Mean
from torch_alm.rules import Rule


def test_measured_a_hundred_times_and_never_stepped_it_says_so_once() -> None:
    c = ALMConstraint(None, 1.0, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(99):
            c.observe(0.0)
    with pytest.warns(UserWarning, match=r"100 measurements wait.*`constraint.step\(\)`"):
        c.observe(0.0)
    for _ in range(200):
        c.observe(0.0)  # warnings are errors
    assert c.step() == 0.5


class Raises(Rule):
    def update(self, update: Any, memory: Any) -> Any:
        raise ArithmeticError("refused")


def test_a_rule_that_raises_leaves_the_constraint_as_it_was() -> None:
    c = ALMConstraint(None, 1.0, 0.5, filter=Mean(4))
    c.observe(0.0)
    c.step()
    before, c.rules = c.state_dict(), [Raises()]
    c.observe(-3.0)
    with pytest.raises(ArithmeticError, match="refused"):
        c.step()
    assert c.state_dict() == before and c.observed == 0


@pytest.mark.parametrize("sense", [">=", "<="])
@pytest.mark.parametrize("filter", [Mean(3), EMA(0.5)], ids=str)
def test_alpha_may_change_in_mid_run_and_over_a_resume(filter: Filter, sense: Any) -> None:
    """As if every violation had been measured against the new level."""

    def run(first: float) -> ALMConstraint:
        c = ALMConstraint(None, first, 0.5, filter=filter, sense=sense)
        for value in (0.0, 0.5):
            c.observe(value)
            c.step()
        return c

    changed, fresh = run(1.0), run(2.0)
    resumed = ALMConstraint(None, 2.0, 0.5, filter=filter, sense=sense)
    resumed.load_state_dict(copy.deepcopy(changed.state_dict()))
    changed.alpha = 2.0
    for c in (changed, fresh, resumed):
        c.observe(0.25)
        c.step()
    seen = [c.metrics()["violation"] for c in (changed, fresh, resumed)]
    assert seen[0] == pytest.approx(seen[1]) and seen[0] == seen[2]
    assert changed.multiplier == resumed.multiplier
