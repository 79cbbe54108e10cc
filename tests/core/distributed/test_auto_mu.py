"""mu="auto" under DDP and FSDP2: one mu on all ranks, that of one process with all the data."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam

from tests.core.distributed import task
from tests.core.distributed.ranks import WORLD, Ranks
from tests.core.test_auto_loops import ALPHA, RATE, WIDE, first_mu
from torch_alm import ALMConstraint

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
    expected = first_mu(-torch.cat(rows) / WORLD, rest)
    assert ranks(parts_of_its_own) == [pytest.approx(expected, rel=1e-9)] * WORLD
