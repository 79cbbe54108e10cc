"""Section 6: gradients without most of their entries, weights on the host, models that move."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from benchmarks.studies.accelerator import problem
from benchmarks.studies.accelerator.checks import Check, Place, Seen, check, check_close
from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM

STEPS = 8


def checks(_: Place) -> list[Check]:
    """All of them run on a CPU, where the host is the device."""
    return [
        Check("sparse gradients are what dense ones are", sparse),
        Check("sparse gradients clipped", partial(sparse, clip=0.1)),
        Check("some weights on the host", on_host),
        Check("some weights on the host, norms clipped", partial(on_host, clip=0.1)),
        Check("a model that moves to the device between steps", moves),
        Check("a model that moves to the host and back", partial(moves, there_and_back=True)),
    ]


def sgd(params: list[Tensor]) -> DualOptimizer:
    """SAUL over plain SGD, which every gradient suits."""
    constraint = ALMConstraint(None, alpha=0.0, mu=problem.MU, multiplier=problem.MULTIPLIER)
    sides = SAM(SGD(params, lr=0.1), rho=0.3), ReverseSAM(SGD(params, lr=0.1), rho=0.3)
    return DualOptimizer(*sides, constraint, probe_every=1)


class Words(nn.Module):
    """An embedding of which a batch sees a few rows, some of them twice."""

    def __init__(self, place: Place, *, is_sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(50, 4, sparse=is_sparse).to(place.device, torch.float64)
        self.out = nn.Linear(4, 3).to(place.device, torch.float64)

    def losses(self, number: int) -> Any:
        generator = torch.Generator().manual_seed(number)
        rows = torch.randint(0, 50, (2, 8), generator=generator)
        rows[:, 1] = rows[:, 0]
        first, second = rows.to(self.out.weight.device)
        label = torch.zeros(8, dtype=torch.long, device=first.device)
        loss = lambda ids: F.cross_entropy(self.out(self.table(ids)), label)  # noqa: E731
        return lambda: loss(first), lambda: loss(second)


def sparse(place: Place, clip: float | None = None) -> Seen:
    """Compare theta and lambda+ with those of dense gradients."""
    nets = [Words(place, is_sparse=flag) for flag in (True, False)]
    found = [run(net, net.losses, clip) for net in nets]
    check(found[0][1] and max(found[0][1]) > 0, "the gate never opened")
    return alike(found)


def alike(found: list[tuple[list[Tensor], list[float]]]) -> Seen:
    """Compare what two runs came to."""
    (theta, weights), (expected, others) = found
    check_close([torch.tensor(weights)], [torch.tensor(others)], 1e-6)
    return check_close(theta, expected, 1e-12)


def run(net: nn.Module, objectives: Any, clip: float | None) -> tuple[list[Tensor], list[float]]:
    """theta on the host after some steps, and lambda+ of each."""
    weights = problem.train(sgd(list(net.parameters())), objectives, range(STEPS), clip)
    return [p.detach().cpu() for p in net.parameters()], weights


class Split(nn.Module):
    """The small network with its first layer elsewhere."""

    def __init__(self, place: Place, first: torch.device) -> None:
        super().__init__()
        self.layers = problem.network(place)
        self.layers[0].to(first)
        self.homes = first, place.device

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layers[0](x.to(self.homes[0])).to(self.homes[1])
        return self.layers[2](self.layers[1](hidden))


def on_host(place: Place, clip: float | None = None) -> Seen:
    """One norm over both places: theta and lambda+ are those of one place."""
    nets = [Split(place, home) for home in (torch.device("cpu"), place.device)]
    found = [
        run(net, lambda number, net=net: problem.losses(net, place, number), clip) for net in nets
    ]
    return alike(found)


def moves(place: Place, there_and_back: bool = False) -> Seen:
    """Copies kept for a device are no use on another."""
    host = Place(torch.device("cpu"))
    trip = [place, host, place] if there_and_back else [host, place]
    mine, its = problem.network(trip[0]), problem.network(host)
    optimizers = [sgd(list(net.parameters())) for net in (mine, its)]
    for at, now in enumerate(trip):
        mine.to(now.device)
        span = range(4 * at, 4 * at + 4)
        for net, optimizer, where in zip((mine, its), optimizers, (now, host), strict=True):
            problem.train(
                optimizer,
                lambda number, net=net, where=where: problem.losses(net, where, number),
                span,
            )
    return check_close([p.cpu() for p in mine.parameters()], its.parameters(), 1e-12)
