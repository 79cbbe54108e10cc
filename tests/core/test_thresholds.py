"""Levels, rates and radii from what they do to a loss, beside the same by hand."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tests.core.optimizers import REPRESENTATIVES, SKIPPED, make, of_torch, variants
from tests.core.table import assert_same
from torch_alm import SAM, DualOptimizer
from torch_alm.measures import log_odds, token_nll
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
    loss_of(net)().backward()
    optimizer.step()


NO_RATE = {  # how many steps were taken, and what has no rate then
    (0, "pytorch_optimizer.AdaShift"): "moves nothing before it has ten gradients",
    (0, "pytorch_optimizer.SOAP"): "a first step that moves nothing",
    (30, "torch.ASGD"): "steps as long as the step before has laid down",
    (30, "torch.Rprop"): "the same",
    **{(taken, name): why for name, why in SKIPPED.items() for taken in (0, 30)},
}


EVERY = [case for name in (*of_torch(), *SKIPPED, *REPRESENTATIVES) for case in variants(name)]


def apart(optimizer: torch.optim.Optimizer, settings: dict[str, Any]) -> torch.optim.Optimizer:
    """Of two groups with rates of their own."""
    group = optimizer.param_groups[0]
    rest = {**group, "params": group["params"][1:], "lr": 3 * group["lr"]}
    group["params"] = group["params"][:1]
    optimizer.add_param_group(rest)
    for each in optimizer.param_groups:
        each.update(settings)
    return optimizer


def around(kind: str, net: torch.nn.Module) -> torch.optim.Optimizer:
    first, second = (torch.optim.AdamW(net.parameters()) for _ in range(2))
    return SAM(first) if kind == "SAM" else DualOptimizer(first, second)


@pytest.mark.parametrize("taken", [0, 30])
@pytest.mark.parametrize(("name", "settings"), [*EVERY, ("SAM", {}), ("DualOptimizer", {})])
@pytest.mark.filterwarnings("ignore:(SAM|DualOptimizer).step\\(\\) with")
def test_a_step_at_that_rate_changes_the_loss_as_much_and_all_stays_as_it_was(
    name: str, settings: dict[str, Any], taken: int, net: torch.nn.Module
) -> None:
    """Whatever the optimizer, or it is refused by its name; a new one of torch is met here."""
    optimizer = make(name, net) if "." in name else around(name, net)
    if name.startswith("torch.") and name not in SKIPPED:
        optimizer = apart(optimizer, settings)
    for _ in range(0 if name in SKIPPED else taken):
        one_step(net, optimizer)
    before = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    grads = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
    noise, loss = torch.get_rng_state(), loss_of(net)
    noisy = lambda: loss() + 0 * torch.rand(1, dtype=torch.float64).sum()  # noqa: E731
    if (taken, name) in NO_RATE:
        with pytest.raises(ValueError, match=rf"rate_for: .* {name.split('.')[1]} "):
            rate_for(optimizer, noisy, change=0.02)
    else:
        rate = rate_for(optimizer, noisy, change=0.02)
    assert_same((net.state_dict(), optimizer.state_dict()), before)
    assert_same([p.grad for p in net.parameters()], grads)
    assert torch.equal(noise, torch.get_rng_state())
    if (taken, name) in NO_RATE:
        return
    groups, g = optimizer.param_groups, flat(net)
    for group in reversed(groups):
        group["lr"] *= rate / groups[0]["lr"]
    theta = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
    moved = torch.cat([p.detach().reshape(-1) for p in net.parameters()]) - theta
    sign = 1 if settings.get("maximize") else -1
    assert sign * float(g @ moved) == pytest.approx(0.02, rel=1e-3)


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
        with pytest.raises(TypeError, match=f"Did you mean (the )?{told}"):
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
    with pytest.raises(ValueError, match=r"SGD takes no step .* or a rate"):
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


def test_nothing_that_watches_the_optimizer_sees_the_step_of_the_copy(net: torch.nn.Module) -> None:
    steps = list[Any]()
    optimizer = torch.optim.AdamW(net.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    handles = [
        optimizer.register_step_post_hook(lambda *given: steps.append(given)),
        register_optimizer_step_pre_hook(lambda *given: steps.append(given)),
    ]
    counted = copy.copy(vars(schedule))
    rate_for(optimizer, loss_of(net))
    assert not steps and vars(schedule) == counted and not optimizer.state
    one_step(net, optimizer)
    assert len(steps) == 2
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("taken", [0, 3])
def test_a_step_that_narrow_weights_would_swallow_is_measured_in_wide_ones(taken: int) -> None:
    def found(dtype: torch.dtype) -> float:
        theta = torch.linspace(1, 2, 40).to(torch.bfloat16).to(dtype).requires_grad_()
        optimizer = torch.optim.Adam([theta], lr=1e-9)
        for _ in range(taken):
            optimizer.zero_grad()
            theta.square().sum().backward()
            optimizer.step()
        return rate_for(optimizer, lambda: theta.square().sum(), change=1e-3)

    assert found(torch.bfloat16) == pytest.approx(found(torch.float64), rel=0.02)


@pytest.mark.parametrize("find", [rate_for, radius_for, level_of])
def test_statistics_that_a_loss_moves_are_put_back(find: Any) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(5, 9), torch.nn.BatchNorm1d(9), torch.nn.Linear(9, 4))
    net = net.double()
    before, loss = copy.deepcopy(net.state_dict()), loss_of(net)
    assert loss().item() and not torch.equal(net[1].running_mean, before["1.running_mean"])
    net.load_state_dict(before)
    given = [loss, [slice(None)]] if find is level_of else [torch.optim.SGD(net.parameters()), loss]
    find(*given)
    assert_same(dict(net.state_dict()), dict(before))


@pytest.mark.parametrize("maximize", [False, True])
def test_rows_known_by_heart_are_told_of_and_their_log_odds_have_a_rate(maximize: bool) -> None:
    """The other three of four words have e^-16 each of the first."""
    theta = torch.tensor([[16.0, 0.0, 0.0, 0.0]], requires_grad=True)
    optimizer = torch.optim.SGD([theta], maximize=maximize)
    model, rows = lambda: theta.expand(1, 2, 4), {"labels": torch.tensor([[-100, 0]])}
    with pytest.warns(UserWarning, match=r"a change of 0\.1 is more than the loss has.*log_odds"):
        wrecking = rate_for(optimizer, lambda: token_nll(model, rows))
    found = rate_for(optimizer, lambda: log_odds(model, rows))
    assert found == pytest.approx(0.1 / (1 + 3 / 9), rel=1e-4) and wrecking > 1e9
