"""mu="auto" under DDP: one mu on all ranks, that of one process with all the data."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam

from tests.distributed.ranks import WORLD, Ranks
from torch_alm import ALMConstraint

STEPS = 70


def train(rank: int, parts: int, make: str) -> dict[str, Any]:
    """One of `parts` processes, which take their rows in turn; the gradient is clipped."""
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(16, 4, generator=g).double(), torch.randn(16, 1, generator=g).double()
    net: Any = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    params = list(net.parameters())
    if parts > 1:
        net = DistributedDataParallel(net)
    optimizer = {"sgd": SGD, "adam": Adam}[make](params, lr=0.02)

    def forgotten(rows: Tensor) -> Tensor:
        return (net(x[rows]) - y[rows]).square().mean()

    constraint = ALMConstraint(forgotten, 3.0, "auto")
    constraint.attach(optimizer)
    for _ in range(STEPS):
        optimizer.zero_grad()
        rows = torch.arange(16)[rank::parts]
        (net(x[rows]).square().mean() + constraint(rows)).backward()
        clip_grad_norm_(params, 0.5)
        optimizer.step()
    state = constraint.state_dict()
    theta = torch.cat([p.detach().reshape(-1) for p in params])
    return {"auto": state["auto"], "multiplier": state["multiplier"], "theta": theta}


@pytest.mark.parametrize("make", ["sgd", "adam"])
def test_ranks_find_one_mu_and_it_is_that_of_one_process(ranks: Ranks, make: str) -> None:
    first, second = ranks(train, WORLD, make)
    assert first["auto"] == second["auto"] and first["multiplier"] == second["multiplier"] > 0
    torch.testing.assert_close(first, train(0, 1, make), rtol=1e-7, atol=1e-9)
