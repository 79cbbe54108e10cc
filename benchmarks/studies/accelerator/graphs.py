"""Section 4: memory that a graph keeps writing to, and steps that must not compile again."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from benchmarks.studies.accelerator import oracle, problem
from benchmarks.studies.accelerator.checks import (
    Check,
    Place,
    Seen,
    check,
    check_close,
    check_equal,
)
from torch_alm import perturbed

STEPS = 8


def checks(_: Place) -> list[Check]:
    """CUDA graphs are left out on a CPU."""
    return [
        Check("SAUL with graphed forward and backward passes", graphed),
        Check("`perturbed`, captured once and replayed", replayed),
        Check("SAUL with a compiled model, not compiled again", compiled),
    ]


def beside_plain(place: Place, prepared: Callable[[nn.Module], Callable[[Tensor], Tensor]]) -> Seen:
    """SAUL through a prepared forward, beside SAUL through the plain one; float32."""
    mine, its = (problem.network(place, torch.float32) for _ in range(2))
    forwards = prepared(mine), its
    weights = [
        problem.train_saul(list(net.parameters()), forward, place, torch.float32, steps=STEPS)
        for net, forward in zip((mine, its), forwards, strict=True)
    ]
    check(0 in weights[0] and max(weights[0]) > 0, "the gate must close and open in this check")
    return check_close(mine.parameters(), its.parameters(), 2e-5)


def graphed(place: Place) -> Seen:
    """Its gradients are always in the same memory, which the next pass overwrites."""
    place.need_cuda("a graphed callable")

    def prepared(net: nn.Module) -> Callable[[Tensor], Tensor]:
        forward = torch.cuda.make_graphed_callables(net, (torch.randn(8, 6, device=place.device),))
        net.zero_grad()
        return forward

    return beside_plain(place, prepared)


def replayed(place: Place) -> Seen:
    """Gradients and weights that change between replays are followed; theta returns."""
    place.need_cuda("a captured perturbation")
    p = nn.Parameter(torch.randn(300_001, device=place.device))
    g, there = torch.randn_like(p), torch.empty_like(p)

    def visit() -> None:
        p.grad = g
        with perturbed([p], 1.0):
            there.copy_(p.detach())

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        visit()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        visit()
    seen: Seen = {}
    for _ in range(2):
        with torch.no_grad():
            p.copy_(torch.randn_like(p))
            g.copy_(torch.randn_like(p))
        before = p.detach().clone()
        graph.replay()
        check_equal([p], [before], "theta after the replay")
        seen = check_close([there], oracle.moved([p], [g], 1.0), 1e-6)
    return seen


def compiled(place: Place) -> Seen:
    """theta moves in place: the graphs of the first two steps serve all others."""
    torch.compiler.reset()
    backend = "inductor" if place.is_cuda else "eager"  # which traces all the same
    counted: list[int] = []

    def prepared(net: nn.Module) -> Callable[[Tensor], Tensor]:
        forward = torch.compile(net, backend=backend)

        def counting(x: Tensor) -> Tensor:
            counted.append(counters["stats"]["unique_graphs"])
            return forward(x)

        return counting

    seen = beside_plain(place, prepared)
    early, late = counted[8], counters["stats"]["unique_graphs"]  # a step has four forward passes
    check(early > 0, "nothing was compiled")
    check(early == late, f"{late - early} graphs were compiled after the second step")
    return {**seen, "graphs": late}
