"""A step under `torch.compile`: perturbing the weights in place must not compile again."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch._dynamo.utils import counters

from benchmarks.studies.cost.overhead import timed
from benchmarks.studies.cost.steps import METHODS, SMALL, TINY, Method, Training, llama

MEASURED = (METHODS[0], METHODS[2], METHODS[5])


def compiled(quick: bool) -> list[dict[str, Any]]:
    """Seconds of a step with a compiled model against the same step without, in turn."""
    shape, rounds = (TINY, 2) if quick else (SMALL, 12)
    return [compared(method, shape, rounds) for method in MEASURED]


def compared(method: Method, shape: tuple[Any, ...], rounds: int) -> dict[str, Any]:
    """One row: medians, and how many graphs were compiled after the first two steps."""
    torch.compiler.reset()
    ids = torch.randint(0, shape[5], (4, 64))
    plain, fast = (Training(llama(shape), method, ids) for _ in range(2))
    fast.model.compile()
    for _ in range(2):
        plain.step()
        fast.step()
    graphs = counters["stats"]["unique_graphs"]
    pairs = [(timed(plain.step), timed(fast.step)) for _ in range(rounds)]
    return {
        "method": method.name,
        "milliseconds": 1e3 * statistics.median(mine for _, mine in pairs),
        "ratio": statistics.median(mine / its for its, mine in pairs),
        "compiled again": counters["stats"]["unique_graphs"] - graphs,
    }
