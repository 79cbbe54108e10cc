"""Every way on every problem with every optimizer: what is solved, what is missed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benchmarks.studies.auto.engine import Cell, Way, run
from benchmarks.studies.auto.optimum import Optimum, optimum
from benchmarks.studies.auto.peers import Cooper, HumanCompatible
from benchmarks.studies.auto.problem import Problem
from benchmarks.studies.auto.settings import SETTINGS
from benchmarks.studies.auto.ways import Auto, Fixed

DECADES = [10.0**k for k in range(-10, 4)]
UNITS = ((1e3, 1e-4), (1e-3, 1e4))  # of the objective and of the measure
Ways = dict[str, tuple[Way, int]]
Row = dict[str, Any]


def fixed(every: int = 1) -> Ways:
    """Algorithm 1, or the same with lambda stored on every `every`-th step only."""
    return {f"every {every}": (Fixed(DECADES, every), len(DECADES))}


def peers() -> Ways:
    """Find the libraries to compare with: cooper, and humancompatible-train if it is installed."""
    found: Ways = {f"cooper {rate:g}": (Cooper(rate), 1) for rate in (1.0, 0.01)}
    if importlib.util.find_spec("humancompatible") is not None:
        for penalty in (0.0, 1.0):
            found[f"humancompatible {penalty:g}"] = (HumanCompatible(penalty), 1)
    return found


def rows(
    problem: Problem,
    best: Optimum,
    cells: Sequence[Cell],
    ways: Ways,
    *,
    kind: str,
    length: int,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> list[Row]:
    """One row per cell: [violation, suboptimality] of each way, in shares."""
    found = run(problem, best, cells, ways, length=length, seed=seed, dtype=dtype)
    return [
        {
            "kind": kind, "problem": problem.name, "seed": seed, **cell._asdict(),
            "ways": {name: each[i].tolist() for name, each in found.items()},
        }
        for i, cell in enumerate(cells)
    ]  # fmt: skip


class Comparison:
    """The runs, a kind after the other, so that what is finished can be written down.

    Args:
        suite: the problems; their optima are found first.
        length: steps of a run.
    """

    def __init__(self, suite: Sequence[type[Problem]], length: int) -> None:
        self.problems = [(problem, optimum(problem)) for problem in (kind() for kind in suite)]
        self.length = length
        self.rows: list[Row] = []

    def run(self, kind: str) -> Iterator[str]:
        """One kind of run on every problem that it suits; the problem's name when it is done."""
        for problem, best in self.problems:
            if kind != "seeds" or problem.batch:
                for how in KINDS[kind]():
                    self.rows += rows(problem, best, kind=kind, length=self.length, **how)
                yield problem.name


def everything() -> Ways:
    return {"auto": (Auto(), 1), **fixed(), **peers()}


PLAIN = [Cell(name) for name in SETTINGS]
OTHER = [Cell(name, *units) for units in UNITS for name in SETTINGS]
KINDS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "main": lambda: [{"cells": PLAIN, "ways": everything()}],
    "cadence": lambda: [{"cells": PLAIN, "ways": fixed(20)}],
    "seeds": lambda: [{"cells": PLAIN, "ways": everything(), "seed": seed} for seed in (1, 2)],
    "float32": lambda: [{"cells": PLAIN, "ways": {"auto": (Auto(), 1)}, "dtype": torch.float32}],
    "units": lambda: [{"cells": OTHER, "ways": {"auto": (Auto(), 1), **peers()}}],
}
