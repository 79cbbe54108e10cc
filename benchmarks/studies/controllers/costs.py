"""The time a step takes: with and without a constraint, and with one that never acts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from benchmarks.studies.controllers.snippets import SNIPPETS, plain
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

    def loop(run: Callable[[nn.Parameter, SGD, int], Any], count: int) -> None:
        x = nn.Parameter(torch.zeros(1))
        run(x, SGD([x], lr=0.01), count)

    def through(snippet: Any) -> Any:
        return lambda x, sgd, count: snippet(x, square, lambda x: x.sum(), 1.0, sgd, count)

    def square(x: Tensor) -> Tensor:
        return x.square().sum()

    rows = {"plain": lambda x, sgd, count: plain(x, square, sgd, count), "by hand": by_hand}
    rows |= {name: through(snippet) for name, snippet in SNIPPETS.items()}
    return {name: microseconds(partial(loop, run), steps) for name, run in rows.items()}


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

    rows: dict[str, Any] = {"retain only": partial(plain, net, loss, sgd)}
    for name, snippet in {**SNIPPETS, "torch-alm, gated": gated}.items():
        rows[name] = partial(snippet, net, loss, loss, -1e9, sgd)
    return {name: microseconds(run, steps) / 1e3 for name, run in rows.items()}
