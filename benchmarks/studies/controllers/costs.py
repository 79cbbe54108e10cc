"""The time a step takes: with and without a constraint, and with one that never acts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from benchmarks.studies.controllers.snippets import SNIPPETS
from torch_alm import ALMConstraint


def microseconds(run: Callable[[int], Any], steps: int, repeats: int = 5) -> float:
    """Thread time per step, the median of the repeats."""
    run(20)
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        run(steps)
        times.append((time.thread_time() - start) / steps * 1e6)
    return statistics.median(times)


def cost(steps: int) -> dict[str, float]:
    """A loop with one parameter; the first row has no constraint."""

    def loop(snippet: Any, count: int) -> None:
        x = nn.Parameter(torch.zeros(1))
        sgd = SGD([x], lr=0.01)
        if snippet is None:
            for _ in range(count):
                sgd.zero_grad()
                x.square().sum().backward()
                sgd.step()
        elif snippet == "by hand":
            by_hand(x, sgd, count)
        else:
            snippet(x, lambda x: x.square().sum(), lambda x: x.sum(), 1.0, sgd, count)

    rows: dict[str, Any] = {"plain": None, "by hand": "by hand", **SNIPPETS}
    return {name: microseconds(lambda n, s=s: loop(s, n), steps) for name, s in rows.items()}


def by_hand(x: Tensor, sgd: SGD, count: int) -> None:
    """The augmented Lagrangian without a library."""
    multiplier = 0.0
    for step in range(1, count + 1):
        sgd.zero_grad()
        c = 1.0 - x.sum()
        plus = multiplier + c
        loss = x.square().sum() + 0.5 * (plus.clamp(min=0).square() - multiplier**2)
        loss.backward()
        sgd.step()
        if step % 50 == 0:
            multiplier = max(plus.item(), 0.0)


def gate(steps: int) -> dict[str, float]:
    """Milliseconds per step of a multilayer perceptron whose constraint never acts."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )
    batch, labels = torch.randn(64, 256), torch.randint(10, (64,))
    sgd = SGD(net.parameters(), lr=1e-4)

    def loss(net: nn.Module) -> Tensor:
        return nn.functional.cross_entropy(net(batch), labels)

    def gated(
        model: Any, retain: Any, measure: Any, alpha: float, optimizer: Any, count: int
    ) -> None:
        constraint = ALMConstraint(None, alpha=alpha, mu=1.0)
        for _ in range(count):
            optimizer.zero_grad()
            value = measure(model)
            constraint.observe(value)
            weight = constraint.step()
            (retain(model) - weight * value if weight else retain(model)).backward()
            optimizer.step()

    rows = {**SNIPPETS, "torch-alm, gated": gated}
    found = {}
    for name, snippet in rows.items():
        found[name] = (
            microseconds(lambda n, s=snippet: s(net, loss, loss, -1e9, sgd, n), steps) / 1e3
        )

    def retain_only(count: int) -> None:
        for _ in range(count):
            sgd.zero_grad()
            loss(net).backward()
            sgd.step()

    return {"retain only": microseconds(retain_only, steps) / 1e3, **found}
