"""Rules beside what `test_controller.py` says of each: how mu grows, and what is refused."""

import math
from typing import Any

import pytest

from tests.core.following import constraint, follow
from torch_alm.filters import EMA, Mean
from torch_alm.rules import Cap, Hold, Leak, PenaltyGrowth, WarmUp


def test_an_equality_has_nothing_to_release() -> None:
    with pytest.raises(ValueError, match=r"rules is .* \(an equality has no side"):
        constraint(sense="==", rules=[Leak(0.5)])


def test_progress_is_that_of_the_same_entry() -> None:
    """Two rows in turn, each down to 40 % whenever it is seen."""
    c = constraint(alpha=[0.0, 0.0], mu=1e-3, rules=[PenaltyGrowth(10.0, limit=1e4)])
    size = [1.0, 100.0]
    for step in range(12):
        c.observe([-size[step % 2]], index=[step % 2])
        c.step()
        size[step % 2] *= 0.4
    assert c.mu == 1e-3


def test_a_limit_below_mu_does_not_lower_it() -> None:
    c = constraint(mu=2.0, rules=[PenaltyGrowth(2.0, limit=1.0)])
    follow(c, [0.0, 0.0, 0.0])
    assert c.mu == 2.0


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: EMA(1.0), "EMA: decay is 1.0; it must be at least 0, below 1"),
        (lambda: Mean(0), "Mean: window is 0; it must be a number of steps, at least 1"),
        (lambda: Mean(2.0), "Mean: window is 2.0; it must be a number of steps"),
        (lambda: Mean(1, 1.0), "Mean: deadband is 1.0; it must be .* needs a window of 2"),
        (lambda: Mean(2, math.inf), "Mean: deadband is inf"),
        (lambda: Mean(2, -1.0), "Mean: deadband is -1.0"),
        (lambda: Hold(0.0), "Hold: share is 0.0; it must be above 0 and at most 1"),
        (lambda: Hold(1.5), "Hold: share is 1.5"),
        (lambda: Leak(0.0), "Leak: share is 0.0"),
        (lambda: Leak(0.5, after=0), "Leak: after is 0"),
        (lambda: PenaltyGrowth(1.0, 9.0), "PenaltyGrowth: factor is 1.0; it must be above 1"),
        (lambda: PenaltyGrowth(math.inf, 9.0), "PenaltyGrowth: factor is inf"),
        (lambda: PenaltyGrowth(2.0, 0.0), "PenaltyGrowth: limit is 0.0"),
        (lambda: PenaltyGrowth(2.0, math.inf), "PenaltyGrowth: limit is inf"),
        (lambda: PenaltyGrowth(2.0, 9.0, 0.0), "PenaltyGrowth: progress is 0.0"),
        (lambda: PenaltyGrowth(2.0, 9.0, 1.0), "PenaltyGrowth: progress is 1.0"),
        (lambda: Cap(0.0), "Cap: limit is 0.0; it must be positive"),
        (lambda: WarmUp(-1), "WarmUp: steps is -1; it must be a number of steps, at least 0"),
    ],
)
def test_filters_and_rules_that_make_no_sense_are_named(make: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}.*Did you mean to leave `.*` out"):
        make()


def test_what_is_left_out_is_the_simplest() -> None:
    assert Leak(0.5) == Leak(0.5, after=1) and Mean(3) == Mean(3, deadband=0.0)
    assert PenaltyGrowth(2.0, 9.0) == PenaltyGrowth(2.0, 9.0, progress=0.5)
