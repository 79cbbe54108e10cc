"""A small problem, the same on every device: numbers are drawn on the host."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW, Optimizer

from benchmarks.studies.accelerator.checks import Place, Seen, check, check_close
from benchmarks.studies.accelerator.oracle import Loss, Saul
from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM

STEPS, MU, RHO, MULTIPLIER = 12, 0.5, 0.05, 0.1
Make = Callable[[list[Tensor]], Optimizer]


def network(place: Place, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Two layers, seeded."""
    torch.manual_seed(0)
    layers = nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5)
    return nn.Sequential(*layers).to(place.device, dtype)


def losses(
    net: Callable[[Tensor], Tensor],
    place: Place,
    number: int,
    dtype: torch.dtype = torch.float64,
    rows: slice = slice(None),
) -> tuple[Loss, Loss]:
    """The objectives of one step, retain and forget."""
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(2, 8, 6, generator=generator, dtype=torch.float64)[:, rows]
    labels = torch.randint(0, 5, (2, 8), generator=generator)[:, rows]
    (x, z), (y, w) = inputs.to(place.device, dtype), labels.to(place.device)
    return lambda: F.cross_entropy(net(x), y), lambda: F.cross_entropy(net(z), w)


def alpha_at(number: int) -> float:
    """Out of reach, then easily met: the gate opens, closes and opens again."""
    return (3.0, -1.0)[number // 4 % 2]


def adamw(params: list[Tensor], **settings: Any) -> Optimizer:
    """The base of both sides."""
    return AdamW(params, lr=1e-2, weight_decay=0.0, **settings)


def dual(params: list[Tensor], make: Make = adamw, **settings: Any) -> DualOptimizer:
    """SAUL over an optimizer that `make` makes, one for either side."""
    constraint = ALMConstraint(None, alpha=0.0, mu=MU, multiplier=MULTIPLIER)
    sides = SAM(make(params), rho=RHO), ReverseSAM(make(params), rho=RHO)
    return DualOptimizer(*sides, constraint, **{"probe_every": 1, **settings})


def train(
    optimizer: DualOptimizer,
    objectives: Callable[[int], tuple[Loss, Loss]],
    span: range,
    clip: float | None = None,
) -> list[float]:
    """lambda+ of each step."""
    constraint = optimizer.constraint
    assert constraint is not None
    weights = []
    for number in span:
        constraint.alpha = alpha_at(number)
        retain, forget = objectives(number)
        optimizer.backward(retain=retain, forget=forget)
        if clip is not None:
            optimizer.clip_grad_norm_(clip)
        optimizer.step()
        optimizer.zero_grad()
        weights.append(float(constraint.weight))
    return weights


def train_saul(
    params: list[Tensor],
    net: Callable[[Tensor], Tensor],
    place: Place,
    dtype: torch.dtype = torch.float64,
    *,
    make: Make = adamw,
    rows: slice = slice(None),
    steps: int = STEPS,
) -> list[float]:
    """lambda+ of each step of SAUL on the parameters behind `net`."""
    objectives = partial(losses, net, place, dtype=dtype, rows=rows)
    return train(dual(params, make), objectives, range(steps))


def equals_oracle(place: Place, make: Make, dtype: torch.dtype, atol: float) -> Seen:
    """SAUL and Algorithm 1 by hand over the same base: theta and lambda+ of each step."""
    mine, its = network(place, dtype), network(place, dtype)
    weights = train_saul(list(mine.parameters()), mine, place, dtype, make=make)
    theta = list(its.parameters())
    saul = Saul(theta, make(theta), make(theta), RHO, MU, MULTIPLIER)
    by_hand = [
        saul.step(*losses(its, place, number, dtype), alpha_at(number)) for number in range(STEPS)
    ]
    check(0 in weights and max(weights) > 0, "the gate must close and open in this check")
    check(
        [w > 0 for w in weights] == [w > 0 for w in by_hand],
        f"the gate is that of another algorithm: {weights} for {by_hand}",
    )
    seen = check_close(mine.parameters(), its.parameters(), atol)
    return {**seen, "of lambda+": abs(weights[-1] - by_hand[-1])}
