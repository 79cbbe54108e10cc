"""Every way on every problem with every optimizer: what is solved, what is missed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
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


def fixed() -> Ways:
    """Algorithm 1, and the same with lambda stored on every 20th step only."""
    return {f"every {every}": (Fixed(DECADES, every), len(DECADES)) for every in (1, 20)}


def peers() -> Ways:
    """As installed; humancompatible-train where it can be imported."""
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


def compare(suite: Sequence[type[Problem]], *, length: int, also: Sequence[str]) -> list[Row]:
    """All rows: the main comparison, then other units, float32 and other draws, as asked for."""
    plain = [Cell(name) for name in SETTINGS]
    other = [Cell(name, *units) for units in UNITS for name in SETTINGS]
    found: list[Row] = []
    for kind in suite:
        problem = kind()
        best = optimum(problem)

        def add(name: str, cells: Sequence[Cell], ways: Ways, **how: Any) -> None:
            found.extend(rows(problem, best, cells, ways, kind=name, length=length, **how))  # noqa: B023

        add("main", plain, {"auto": (Auto(), 1), **fixed(), **peers()})
        if "units" in also:
            add("units", other, {"auto": (Auto(), 1), **peers()})
        if "float32" in also:
            add("float32", plain, {"auto": (Auto(), 1)}, dtype=torch.float32)
        for seed in (1, 2) if "seeds" in also and problem.batch else ():
            add("seeds", plain, {"auto": (Auto(), 1), **fixed(), **peers()}, seed=seed)
        print(f"{problem.name}: {len(found)} cells", flush=True)
    return found
