"""Violations under noise: cadence, the mean with its dead-band, exponential mean, warm-up."""

import math
import random
from typing import Any

import pytest
import torch

from tests.core.following import constraint, follow
from torch_alm import ALMConstraint
from torch_alm.filters import EMA, Filter, Mean, Reading
from torch_alm.rules import WarmUp


@pytest.mark.parametrize("kind", [Mean(4), EMA(0.8)], ids=str)
@pytest.mark.filterwarnings("ignore:.*not finite")
def test_what_is_not_measured_meanwhile_is_moved_once(kind: Any) -> None:
    """Look elsewhere for two steps after alpha has changed, at other entries or at a nan."""
    rows = ALMConstraint(None, torch.ones(2), 0.5, filter=kind)
    one, always = (ALMConstraint(None, alpha, 0.5, filter=kind) for alpha in (1.0, 3.0))
    for value in (0.5, 2.0, 1.0, None, None, 1.5):
        if value is None:
            rows.alpha, one.alpha = torch.full((2,), 3.0), 3.0
            rows.observe(torch.tensor([9.0]), index=[1])
            one.observe(math.nan)
        else:
            rows.observe(torch.tensor([value]), index=[0])
            one.observe(value)
            always.observe(value)
            always.step()
        rows.step()
        one.step()
    expected = always.metrics()["violation"]
    assert one.metrics()["violation"] == pytest.approx(expected, abs=1e-12)
    saved = rows.state_dict()["violation"]
    assert float(saved[0]) == pytest.approx(expected, abs=1e-12)


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
