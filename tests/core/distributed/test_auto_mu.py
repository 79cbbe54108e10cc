"""mu="auto" under DDP and FSDP2: one mu on all ranks, that of one process with all the data."""

from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam

from tests.core.distributed import task
from tests.core.distributed.ranks import WORLD, Ranks
from tests.core.test_auto_loops import ALPHA, RATE, WIDE, first_mu
from torch_alm import ALMConstraint, DualOptimizer

STEPS = 70


def train(rank: int, parts: int, make: str) -> dict[str, Any]:
    """One of `parts` processes, which take their rows in turn, in two parts."""
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(16, 4, generator=g).double(), torch.randn(16, 1, generator=g).double()
    net: Any = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    if parts > 1:
        net = DistributedDataParallel(net)
    params = list(net.parameters())
    optimizer = {"sgd": SGD, "adam": Adam}[make](params, lr=0.02)

    def forgotten(rows: Tensor) -> Tensor:
        return (net(x[rows]) - y[rows]).square().mean()

    constraint = ALMConstraint(forgotten, 3.0, "auto")
    constraint.attach(optimizer)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for rows in torch.arange(16)[rank::parts].chunk(2):
            ((net(x[rows]).square().mean() + constraint(rows)) / 2).backward()
        optimizer.step()
    state = constraint.state_dict()
    theta = torch.cat([p.detach().reshape(-1) for p in params])
    return {"auto": state["auto"], "multiplier": state["multiplier"], "theta": theta}


@pytest.mark.parametrize("make", ["sgd", "adam"])
def test_ranks_find_one_mu_and_it_is_that_of_one_process(ranks: Ranks, make: str) -> None:
    first, second = ranks(train, WORLD, make)
    assert first["auto"] == second["auto"] and first["multiplier"] == second["multiplier"] > 0
    torch.testing.assert_close(first, train(0, 1, make), rtol=1e-7, atol=1e-9)


def train_two_sides(rank: int, engine: str, scale: Any, make: str) -> dict[str, Any]:
    """A `DualOptimizer` on a rank's rows, or on all of them where there is one process."""
    net = task.wrapped(engine)
    params = list(net.parameters())
    optimizers = [{"sgd": SGD, "adam": Adam}[make](params, lr=0.02) for _ in range(2)]
    constraint = ALMConstraint(None, 2.5, "auto")
    optimizer = DualOptimizer(*optimizers, constraint, scale=scale)
    rows = slice(None) if engine == "alone" else task.rows_of(rank)
    weights = []
    for step in range(25):
        retain, forget = task.losses(net, task.batch(step % 3, 0, rows))
        optimizer.backward(retain=retain, forget=forget)
        optimizer.step()
        optimizer.zero_grad()
        weights.append(constraint.weight)
    theta = [p.detach() for p in params]
    return {"auto": constraint.state_dict()["auto"], "weights": weights, "theta": theta}


@pytest.mark.parametrize("engine", ["fsdp", "tp"])
def test_sharded_parameters_are_refused_by_name(ranks: Ranks, engine: str) -> None:
    first, second = ranks(sharded, engine)
    assert first == second and "FSDP2" in first and "mu=0.1" in first


def sharded(_: int, engine: str) -> str:
    net = task.wrapped(engine)
    constraint = ALMConstraint(lambda x: net(x).square().mean(), 1.0, "auto")
    optimizer = SGD(list(net.parameters()), lr=0.1)  # which lives as long as this name
    constraint.attach(optimizer)
    with pytest.raises(RuntimeError, match="sharded parameters") as refused:
        constraint(torch.ones(2, 6).double())
    return str(refused.value)


def parts_of_its_own(rank: int) -> float:
    """Each rank's measure reaches another parameter, of another size."""
    params = [torch.zeros(size, dtype=WIDE, requires_grad=True) for size in (3, 4)]
    optimizer = SGD(params, RATE)
    mine = params[rank]
    constraint = ALMConstraint(
        lambda: torch.arange(1.0, len(mine) + 1).double() @ mine, ALPHA, "auto"
    )
    constraint.attach(optimizer)
    (sum((p + 1).square().sum() for p in params) + constraint()).backward()
    for p in params:
        assert p.grad is not None
        dist.all_reduce(p.grad)
        p.grad /= WORLD
    optimizer.step()
    return float(constraint.mu)


def test_ranks_whose_measures_reach_other_parameters_find_one_mu(ranks: Ranks) -> None:
    rows = [torch.arange(1.0, size + 1, dtype=WIDE) for size in (3, 4)]
    rest = torch.full((7,), 2.0, dtype=WIDE)
    expected = first_mu(-torch.cat(rows) / WORLD, rest, rest)
    assert ranks(parts_of_its_own) == [pytest.approx(expected, rel=1e-9)] * WORLD


def with_shares_of_its_own(rank: int, scale: Literal["gradient", "step"]) -> list[float]:
    """A rank has half or one and a half of the weight of a step; gradients are averaged."""
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)

    def averaged(loss: Tensor) -> None:
        loss.backward()
        assert x.grad is not None
        dist.all_reduce(x.grad)
        x.grad /= 2

    constraint = ALMConstraint(None, 1.0, "auto", sense="<=")
    sides = (SGD([x], 0.3), SGD([x], 0.3))
    dual = DualOptimizer(*sides, constraint, scale=scale, backward=averaged)
    for _ in range(20):
        dual.backward(
            retain=lambda: 0.5 * (x - target).square().sum() / (0.5 + rank),
            forget=lambda: x.sum(),
            weight=0.5 + rank,
        )
        dual.step()
        dual.zero_grad()
    return [float(constraint.mu), constraint.multiplier, *x.tolist()]
