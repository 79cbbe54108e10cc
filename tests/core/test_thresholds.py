"""Levels, rates and radii from what they do to a loss, beside the same by hand."""

import copy
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from torch_alm.thresholds import level_of, radius_for, rate_for


def test_a_level_is_a_mean_with_its_standard_error() -> None:
    values = [1.0, 2.0, 4.0, 9.0]
    x = torch.ones((), requires_grad=True)
    level = level_of(lambda v: x * v, iter(values))
    assert level.value == 4.0 and level.batches == 4
    assert level.error == pytest.approx(np.std(values, ddof=1) / 2)
    single = level_of(lambda v: x * v, [3.0])
    assert (single.value, single.batches) == (3.0, 1) and math.isnan(single.error)


def test_a_level_keeps_no_graph() -> None:
    x = torch.ones((), requires_grad=True)

    def measure(value: float) -> torch.Tensor:
        assert not (x * value).requires_grad
        return x * value

    assert level_of(measure, iter([1.0])).value == 1.0


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_a_level_of_nothing_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="level_of found"):
        level_of(torch.tensor, values)


@pytest.mark.parametrize("measured", [torch.ones(2), np.ones(2), None, "much"])
def test_a_measurement_that_is_no_number_is_named(measured: object) -> None:
    with pytest.raises(ValueError, match="level_of needs one number per batch"):
        level_of(lambda _: measured, [0])  # type: ignore[arg-type]


@pytest.fixture
def net() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(5, 9), torch.nn.Tanh(), torch.nn.Linear(9, 4)
    ).double()


X = torch.randn(64, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.arange(64) % 4


def loss_of(net: torch.nn.Module) -> Any:
    return lambda rows=slice(None): torch.nn.functional.cross_entropy(net(X[rows]), Y[rows])


def flat(net: torch.nn.Module, rows: Any = slice(None)) -> torch.Tensor:
    grads = torch.autograd.grad(loss_of(net)(rows), [*net.parameters()])
    return torch.cat([g.reshape(-1) for g in grads])


def one_step(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss_of(net)(slice(0, 32)).backward()
    optimizer.step()


def squares(net: torch.nn.Module, optimizer: torch.optim.Optimizer, name: str) -> torch.Tensor:
    return torch.cat([optimizer.state[p][name].reshape(-1) for p in net.parameters()])


ORACLES = {
    "sgd": (lambda ps: torch.optim.SGD(ps, lr=1.0), 0, lambda n, o, g: g),
    "momentum": (lambda ps: torch.optim.SGD(ps, momentum=0.9), 0, lambda n, o, g: g / 0.1),
    "fresh adamw": (lambda ps: torch.optim.AdamW(ps, eps=1e-30), 0, lambda n, o, g: g.sign()),
    "adamw": (
        lambda ps: torch.optim.AdamW(ps, betas=(0.9, 0.99), eps=1e-8),
        3,
        lambda n, o, g: g / ((squares(n, o, "exp_avg_sq") / (1 - 0.99**3)).sqrt() + 1e-8),
    ),
    "rmsprop": (
        lambda ps: torch.optim.RMSprop(ps, eps=1e-8),
        2,
        lambda n, o, g: g / (squares(n, o, "square_avg").sqrt() + 1e-8),
    ),
    "adagrad": (
        lambda ps: torch.optim.Adagrad(ps),
        2,
        lambda n, o, g: g / (squares(n, o, "sum").sqrt() + 1e-10),
    ),
}


@pytest.mark.parametrize("name", ORACLES)
def test_a_rate_is_that_of_the_step_by_hand_and_all_stays_as_it_was(
    name: str, net: torch.nn.Module
) -> None:
    make, steps, direction = ORACLES[name]
    optimizer = make(net.parameters())
    for _ in range(steps):
        one_step(net, optimizer)
    g = flat(net)
    expected = 0.1 / float((g * direction(net, optimizer, g)).sum())
    before = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    grads = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
    noise, modes = torch.get_rng_state(), [m.training for m in net.modules()]
    noisy = loss_of(net)
    found = rate_for(optimizer, lambda: noisy() + 0 * torch.rand(1, dtype=torch.float64).sum())
    assert found == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close((net.state_dict(), optimizer.state_dict()), before, rtol=0, atol=0)
    torch.testing.assert_close([p.grad for p in net.parameters()], grads, rtol=0, atol=0)
    assert torch.equal(noise, torch.get_rng_state())
    assert modes == [m.training for m in net.modules()]


def test_a_rate_of_batches_is_that_of_their_mean_and_groups_keep_their_ratio(
    net: torch.nn.Module,
) -> None:
    first, last = list(net[0].parameters()), list(net[2].parameters())  # type: ignore[index]
    optimizer = torch.optim.SGD([{"params": first, "lr": 0.2}, {"params": last, "lr": 0.6}], lr=1.0)
    g = flat(net)
    count = sum(p.numel() for p in first)
    expected = 0.3 / float(g[:count].square().sum() + 3 * g[count:].square().sum())
    halves = iter([slice(0, 32), slice(32, 64)])
    assert rate_for(optimizer, loss_of(net), halves, change=0.3) == pytest.approx(expected)


@pytest.mark.parametrize("scale", [1e-3, 7.0, 1e4])
@pytest.mark.parametrize("adam", [True, False])
def test_a_step_changes_the_loss_as_much_in_other_units(
    scale: float, adam: bool, net: torch.nn.Module
) -> None:
    kind = partial(torch.optim.AdamW, eps=0.0) if adam else torch.optim.SGD
    units = [scale**k for k in torch.linspace(-1, 1, 4).tolist()]
    theta = [
        (p.detach() / u).requires_grad_() for p, u in zip(net.parameters(), units, strict=True)
    ]
    names = [name for name, _ in net.named_parameters()]

    def rescaled() -> torch.Tensor:
        weights = {n: u * p for n, u, p in zip(names, units, theta, strict=True)}
        out = torch.func.functional_call(net, weights, (X,))
        return scale * torch.nn.functional.cross_entropy(out, Y)

    rate = rate_for(kind(theta, lr=1.0), rescaled, change=0.1 * scale)
    grads = torch.autograd.grad(rescaled(), theta)
    moved = sum(float((g * (g.sign() if adam else g)).sum()) for g in grads)
    assert rate * moved == pytest.approx(0.1 * scale, rel=1e-9)


def test_what_no_rate_or_radius_can_be_found_from_is_refused(net: torch.nn.Module) -> None:
    optimizer = torch.optim.SGD(net.parameters())
    loss, theta = loss_of(net), torch.zeros(2, requires_grad=True)
    for bad in (lambda: loss() * math.nan, lambda: theta.sum(), lambda: 0 * loss()):
        with pytest.raises(ValueError, match="rate_for found a loss of"):
            rate_for(optimizer, bad)
        with pytest.raises(ValueError, match="radius_for found a loss of"):
            radius_for(net.parameters(), bad)
    noise = torch.get_rng_state()
    for bad in (lambda: loss().detach(), lambda: 3.0, lambda: torch.rand(2, requires_grad=True)):
        with pytest.raises(ValueError, match="one number"):
            rate_for(optimizer, bad)
    assert torch.equal(noise, torch.get_rng_state()), "also where it refuses"
    for find, given, told in ((rate_for, [theta], "optimizer"), (radius_for, optimizer, "`lambda")):
        with pytest.raises(TypeError, match=f"Did you mean (an )?{told}"):
            find(given, loss if given is not optimizer else loss())
    for find, of in ((rate_for, optimizer), (radius_for, [theta])):
        with pytest.raises(ValueError, match="change is 0; it has to be above 0"):
            find(of, loss, change=0)
    with pytest.raises(ValueError, match="0 batches"):
        rate_for(optimizer, loss, [])
    optimizer.param_groups[0]["lr"] = 0.0
    with pytest.raises(ValueError, match="warmed up from 0"):
        rate_for(optimizer, loss)
    optimizer.param_groups[0]["lr"] = None
    with pytest.raises(ValueError, match="rate_for cannot tell a step"):
        rate_for(optimizer, loss)


@pytest.mark.parametrize(("sign", "change"), [(1, 0.05), (1, 1.0), (-1, 0.01), (-1, 0.04)])
@pytest.mark.parametrize("adaptive", [False, True])
def test_at_the_radius_the_loss_has_changed_as_much_by_hand(
    sign: int, change: float, adaptive: bool, net: torch.nn.Module
) -> None:
    loss, calls, theta = loss_of(net), [], copy.deepcopy(net.state_dict())

    def counted() -> torch.Tensor:
        calls.append(net.training)
        return loss()

    groups = [{"params": [*net[0].parameters()], "rho": 2.0}, {"params": [*net[2].parameters()]}]  # type: ignore[index]
    found = radius_for(
        torch.optim.SGD(groups), counted, change=change, sign=sign, adaptive=adaptive
    )
    assert len(calls) <= 11
    torch.testing.assert_close(net.state_dict(), theta, rtol=0, atol=0)
    assert all(p.grad is None for p in net.parameters())
    size = [p.detach().abs() if adaptive else torch.ones_like(p) for p in net.parameters()]
    g = torch.autograd.grad(loss(), [*net.parameters()])
    norm = sum((s * x).square().sum() for s, x in zip(size, g, strict=True)) ** 0.5
    own = (2.0, 2.0, 1.0, 1.0)
    with torch.no_grad():
        for p, s, x, rho in zip(net.parameters(), size, g, own, strict=True):
            p.add_(sign * found.value * rho * s * s * x / norm)
        assert sign * (loss() - found.loss) == pytest.approx(change, rel=0.021)
    assert dict(found.seen)[found.value] == pytest.approx(loss().item())


def test_a_loss_that_turns_before_it_has_fallen_enough_names_the_best_radius() -> None:
    theta = torch.tensor([3.0, 4.0], requires_grad=True)
    with pytest.raises(ValueError, match=r"changes most at 5\.?\d*, by") as refused:
        radius_for([theta], lambda: theta.norm() + 1.0, change=5.5, sign=-1)
    assert "Did you mean a smaller change?" in str(refused.value)
    assert theta.tolist() == [3.0, 4.0] and theta.grad is None


def test_the_smallest_radius_is_found_though_the_loss_falls_again_behind_it() -> None:
    theta = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    hill = radius_for([theta], lambda: (theta / 100 + 6 * (-(((theta - 10) / 4) ** 2)).exp()).sum())
    assert 3 < hill.value < 4.5
