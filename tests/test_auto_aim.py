"""Aimed forget steps: foretold exactly, in any unit, noise left aside."""

import random
from collections.abc import Callable, Iterable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from torch_alm._constraint.aim import Aim
from torch_alm._constraint.auto import Response
from torch_alm._constraint.rates import Rates
from torch_alm._constraint.response import Sides, sides

WIDE = torch.float64
Make = Callable[[Iterable[Tensor]], Optimizer]
EXACT: dict[str, Make] = {
    "SGD": partial(SGD, lr=0.1),
    "SGD, momentum": partial(SGD, lr=0.1, momentum=0.9),
    "SGD, damped": partial(SGD, lr=0.1, momentum=0.8, dampening=0.5),
    "SGD, Nesterov": partial(SGD, lr=0.1, momentum=0.9, nesterov=True),
    "SGD, uphill": partial(SGD, lr=0.1, momentum=0.9, maximize=True),
    "Adam": partial(Adam, lr=0.1),
    "Adam, uphill": partial(Adam, lr=0.1, maximize=True),
    "Adam, the largest": partial(Adam, lr=0.1, amsgrad=True),
    "Adam, lr on the device": partial(Adam, lr=torch.tensor(0.1, dtype=WIDE)),
    "AdamW, other betas": partial(AdamW, lr=0.1, betas=(0.5, 0.9), weight_decay=0.0),
}


def random_gradient(p: Tensor) -> Tensor:
    return torch.randn(p.shape, dtype=p.dtype)


@pytest.mark.parametrize("make", EXACT.values(), ids=EXACT)
def test_both_steps_are_foretold_with_the_past_of_their_momentum(make: Make) -> None:
    torch.manual_seed(0)
    theta = torch.zeros(7, dtype=WIDE, requires_grad=True)
    retain, forget = make([theta]), make([theta])
    retain.param_groups[0]["lr"] = 0.03
    moved = {}
    for step in range(4):
        r, a = random_gradient(theta), random_gradient(theta)
        found = sides(retain, forget, {theta: r}, {theta: a}, +1)
        for side, g in ((retain, r), (forget, a)):
            before, theta.grad = theta.detach().clone(), g
            side.step()
            moved[side] = theta.detach() - before
        if step == 0 and "momentum" in forget.defaults and forget.defaults["momentum"]:
            continue  # a first step has no past; its momentum is yet to come
        assert found.gain == pytest.approx(-(a @ moved[forget]).item(), rel=1e-6)
        assert found.drift == pytest.approx((a @ moved[retain]).item(), rel=1e-6)


def follow(violations: Iterable[float], unit: float = 1.0) -> list[float]:
    """The shares for these violations, in other units."""
    aim, shares = Aim(), []
    for c in violations:
        aim.see(unit * c)
        shares.append(aim.share(Sides(unit * 3.0, unit * 0.2, 1.0, 1.0), 1.0))
    return shares


@pytest.mark.parametrize("unit", [2.0**-13, 2.0**13])
def test_the_aim_is_the_same_in_any_unit(unit: float) -> None:
    noise = random.Random(0)
    violations = [noise.gauss(max(1 - i / 10, 0), 0.1) for i in range(60)]
    assert follow(violations, unit) == follow(violations)


def test_what_is_noise_is_not_aimed_at() -> None:
    """c is noise about 0 and no step moves it: its level is nearer to 0 than it is."""
    noise, aim = random.Random(1), Aim()
    values, levels = [], []
    for _ in range(400):
        values.append(noise.gauss(0.0, 1.0))
        aim.see(values[-1])
        levels.append(aim.level)
    assert sum(x * x for x in levels[20:]) < 0.5 * sum(x * x for x in values[20:])


def test_what_comes_as_foretold_is_believed_at_once() -> None:
    aim, c = Aim(), 1.0
    for _ in range(8):
        aim.see(c)
        assert aim.level == pytest.approx(c, abs=1e-12)
        c -= 3.0 * aim.share(Sides(3.0, 0.2, 1.0, 1.0), 1.0) - 0.2
    assert c == pytest.approx(0.0, abs=1e-12) and aim.reach == 1.0


def test_a_fall_that_noise_hides_says_nothing_of_its_reach() -> None:
    """Steps that fall by 1/1000 of the noise: what comes of them cannot be seen."""
    noise, aim = random.Random(2), Aim()
    for _ in range(200):
        aim.see(noise.gauss(0.0, 1.0))
        aim.share(Sides(1e-3, 0.0, 1.0, 1.0), 1.0)
    assert aim.reach > 0.99


def test_a_fall_beyond_what_was_foretold_is_not_counted_on() -> None:
    aim, c = Aim(), 1.0
    for _ in range(5):
        aim.see(c)
        c -= 4 * (0.1 * aim.share(Sides(0.1, 0.0, 1.0, 1.0), 1.0))
    assert aim.reach == 1.0


def test_a_step_that_is_not_aimed_foretells_nothing() -> None:
    aim = Aim()
    aim.see(1.0)
    aim.share(Sides(3.0, 0.2, 1.0, 1.0), 1.0)
    assert aim.foretold > 0 and aim.ahead == 0.2
    aim.share(Sides(3.0, 0.2, 1.0, 1.0), 0.0)
    assert aim.foretold == 0.0
    aim.share(None, 0.0)
    aim.share(Sides(3.0, -0.2, 1.0, 1.0), 1.0)
    assert aim.ahead == 0.0, "a retain step that helps closes no gate"


def test_the_gate_stays_open_while_the_retain_step_leads_out() -> None:
    rates = Rates()
    rates.step(1.0, seen=True, response=Response(gain=1.0, norm=1.0, rest=1.0, total=1.0))
    assert rates.push(-0.1) < 0
    rates.aim(Sides(3.0, 0.2, 1.0, 1.0), 1.0)
    assert rates.push(-0.1) > 0 > rates.push(-0.3)
    rates.step(-0.1, seen=True, response=None)  # which nobody aims: `scale` is settable
    assert rates.push(-0.1) < 0
