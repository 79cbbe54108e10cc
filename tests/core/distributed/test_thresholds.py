"""`rate_for` and `radius_for` under DDP: on every rank those of one process with all the data."""

import pytest
from torch.optim import AdamW

from tests.core.distributed import task
from tests.core.distributed.ranks import Ranks
from torch_alm.thresholds import radius_for, rate_for


def found(rank: int | None) -> tuple[float, float]:
    net = task.wrapped("alone" if rank is None else "ddp")
    rows = slice(None) if rank is None else task.rows_of(rank)
    _, loss = task.losses(net, task.batch(0, 0, rows))
    params = list(net.parameters())
    rate = rate_for(AdamW(params, lr=3.0), loss, change=0.1)
    return rate, radius_for(params, loss, change=0.2).value


def test_ranks_find_the_rate_and_the_radius_of_one_process(ranks: Ranks) -> None:
    assert ranks(found) == [pytest.approx(found(None), rel=1e-9)] * 2
