"""Faults on one rank: nothing hangs, theta returns, and the error says where."""

import warnings

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from tests.core.distributed import task
from tests.core.distributed.ranks import Ranks
from torch_alm import ALMConstraint


def nan_on_one_rank(rank: int, engine: str) -> tuple[list[Tensor], float, int, list[str]]:
    net = task.wrapped(engine)
    params = list(net.parameters())
    optimizer = task.dual(params)
    optimizer.constraint.alpha = 5.0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(3):
            retain, forget = task.losses(net, task.batch(step, 0, task.rows_of(rank)))
            spoiled = float("nan") if (rank, step) == (1, 1) else 1.0
            optimizer.backward(retain=retain, forget=lambda f=forget, s=spoiled: s * f())
            optimizer.step()
            optimizer.zero_grad()
    said = [
        str(w.message) for w in caught if "torch_alm" in str(w.message) or "Dual" in str(w.message)
    ]
    constraint = optimizer.constraint
    return [task.whole(p) for p in params], constraint.multiplier, optimizer.skipped, said


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_a_nan_on_one_rank_reaches_no_weight_on_any(ranks: Ranks, engine: str) -> None:
    first, second = ranks(nan_on_one_rank, engine)
    assert all(theta.isfinite().all() for theta in first[0])
    assert all(torch.equal(a, b) for a, b in zip(first[0], second[0], strict=True))
    assert first[1] == second[1] > 0 and first[2] == second[2] == 1
    assert any("forget gradient is not finite" in line for line in first[3])


def nan_in_the_loss(rank: int, engine: str, mu: object) -> tuple[list[Tensor], float, int]:
    net = task.wrapped(engine)
    params = list(net.parameters())
    optimizer = SGD(params, lr=0.05)
    constraint = ALMConstraint(lambda x: net(x).square().mean(), 5.0, mu)
    constraint.attach(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(3):
            x = torch.full((2, 6), 1.0 + rank, dtype=torch.float64)
            spoiled = float("nan") if (rank, step) == (1, 1) else 1.0
            (net(x).square().mean() + constraint(spoiled * x)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [task.whole(p) for p in params], constraint.multiplier, constraint.skipped


@pytest.mark.parametrize(("engine", "mu"), [("ddp", 0.5), ("ddp", "auto"), ("fsdp", 0.5)])
def test_a_nan_in_the_loss_of_one_rank_leaves_the_penalty_out_on_all(
    ranks: Ranks, engine: str, mu: object
) -> None:
    first, second = ranks(nan_in_the_loss, engine, mu)
    assert all(theta.isfinite().all() for theta in first[0])
    assert all(torch.equal(a, b) for a, b in zip(first[0], second[0], strict=True))
    assert first[1:] == second[1:] and first[2] == 1
    if mu == 0.5:
        expected, multiplier = nan_in_the_loss_by_hand()
        assert first[1] == pytest.approx(multiplier, rel=1e-9)
        torch.testing.assert_close(first[0], expected, rtol=1e-9, atol=1e-12)


def nan_in_the_loss_by_hand() -> tuple[list[Tensor], float]:
    """Algorithm 1 in one process: the second step has a measurement of one rank and no penalty."""
    net = task.model()
    params, multiplier = list(net.parameters()), 0.0
    for step in range(3):
        x = (torch.full((2, 6), 1.0 + rank, dtype=torch.float64) for rank in range(2))
        values = [net(each).square().mean() for each in x]
        seen = values[:1] if step == 1 else values
        violation = 5.0 - torch.stack(seen).mean()
        weight = max(0.0, multiplier + 0.5 * violation.item())
        push = 0.0 if step == 1 else weight * violation
        grads = torch.autograd.grad(torch.stack(values).mean() + push, params)
        with torch.no_grad():
            for p, g in zip(params, grads, strict=True):
                p -= 0.05 * g
        multiplier = weight
    return [p.detach() for p in params], multiplier
