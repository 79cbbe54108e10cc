"""Filters and rules beside what `test_controller.py` says of each: noise, growth, refusals."""

import io
import math
import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.core.following import constraint, follow
from torch_alm import ALMConstraint
from torch_alm.filters import EMA, Filter, Mean, Reading
from torch_alm.rules import Cap, Hold, Leak, PenaltyGrowth, Rule, Update, WarmUp


def test_an_equality_has_nothing_to_release() -> None:
    with pytest.raises(ValueError, match=r"rules is .* \(an equality has no side"):
        constraint(sense="==", rules=[Leak(0.5)])


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


@dataclass(frozen=True)
class Ramp(Rule):
    """A rule as a user writes one: up by so much per update at most; counts how often."""

    limit: float

    def init(self) -> int:
        return 0

    def update(self, update: Update, memory: int) -> tuple[Update, int]:
        ceiling = update.before + self.limit
        stored = min(update.stored, ceiling)
        return update._replace(stored=stored), memory + (update.stored > ceiling)


class Median(Filter):
    """A filter as a user writes one."""

    def init(self) -> list[float]:
        return []

    def update(self, reading: Reading, memory: list[float]) -> tuple[float, list[float]]:
        memory = [*memory, reading.violation][-3:]
        return sorted(memory)[len(memory) // 2], memory


def test_a_filter_and_a_rule_of_ones_own_act_look_ahead_and_resume() -> None:
    given: dict[str, Any] = {"filter": Median(), "rules": [Ramp(0.25), Leak(0.5)]}
    c, resumed = constraint(alpha=0.0, **given), constraint(alpha=0.0, **given)
    for violation, weight, stored in ((1.0, 0.5, 0.25), (9.0, 4.75, 0.5), (-2.0, 1.0, 0.75)):
        c.observe(-violation)
        assert c.preview() == c.preview() == c.step() == weight
        assert c.multiplier == stored
    assert c.state_dict()["filter"] == [["Median", [1.0, 9.0, -2.0]]]
    buffer = io.BytesIO()
    torch.save(c.state_dict(), buffer)
    buffer.seek(0)
    resumed.load_state_dict(torch.load(buffer, weights_only=True))
    assert follow(resumed, [1.0, 1.0]) == follow(c, [1.0, 1.0])
    assert str(resumed.state_dict()) == str(c.state_dict())


def test_a_rule_that_fails_leaves_the_step_undone() -> None:
    class Broken(Rule):
        def update(self, update: Update, memory: Any) -> tuple[Update, Any]:
            raise RuntimeError("no rule")

    c = constraint(filter=Mean(3), rules=[Ramp(1.0)])
    follow(c, [0.5])
    before = str(c.state_dict())
    c.rules = [*c.rules, Broken()]
    c.observe(0.0)
    with pytest.raises(RuntimeError, match="no rule"):
        c.step()
    c.rules = c.rules[:1]
    assert str(c.state_dict()) == before and c.observed == 0


def test_a_filter_of_one_s_own_begins_anew_with_another_alpha() -> None:
    class Last(Filter):
        def update(self, reading: Reading, memory: Any) -> tuple[Any, Any]:
            seen = [*(memory or []), reading.violation]
            return sum(seen) / len(seen), seen

    c = ALMConstraint(None, alpha=1.0, mu=0.5, filter=Last())
    found = []
    for c.alpha, value in ((1.0, 0.0), (1.0, 2.0), (3.0, 0.0), (3.0, 2.0)):
        c.observe(value)
        c.step()
        found.append(c.metrics()["violation"])
    assert found == [1.0, 0.0, 3.0, 2.0]


@pytest.mark.parametrize(
    "given",
    [{"filter": Mean(3)}, {"filter": EMA(0.5)}, {"filter": Mean(4, deadband=0.2)}, {}],
    ids=str,
)
@pytest.mark.parametrize("size", [None, 3])
def test_gradients_of_penalty_and_call_are_the_weight(
    given: dict[str, Any], size: int | None
) -> None:
    noise = random.Random(4)
    c = constraint(
        alpha=1.0 if size is None else torch.ones(size), rules=[WarmUp(2)], multiplier=0.3, **given
    )
    for _ in range(8):
        x = torch.tensor([noise.gauss(0.5, 1.0) for _ in range(size or 1)], dtype=torch.float64)
        x = (x if size else x[0]).requires_grad_()
        if given:  # a filter takes the mean of the step, with the micro-batch before
            c.observe(x.detach() - noise.random())
        (by_penalty,) = torch.autograd.grad(c.penalty(x), x)
        c.measure = lambda x=x: x
        (by_call,) = torch.autograd.grad(c(), x)
        weight = torch.as_tensor(c.step(), dtype=torch.float64)
        assert torch.allclose(-by_penalty, weight, atol=1e-12, rtol=0)
        assert torch.allclose(-by_call, weight, atol=1e-12, rtol=0)


@pytest.mark.parametrize("given", [{"filter": EMA(0.5)}, {"filter": Mean(3)}], ids=str)
def test_a_first_step_that_is_skipped_leaves_no_mean(given: dict[str, Any]) -> None:
    c = constraint(**given)
    c.observe(math.nan)
    with pytest.warns(UserWarning, match="not finite"):
        assert c.step() == 0.0
    assert follow(c, [-1.0]) == [1.0]
