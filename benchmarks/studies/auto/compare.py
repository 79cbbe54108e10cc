"""Every way on every problem with every optimizer: what is solved, what is missed."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.report.results import write_json
from benchmarks.studies.auto.engine import Cell, Way, run
from benchmarks.studies.auto.optimum import Optimum, multiplier, optimum
from benchmarks.studies.auto.peers import Cooper, HumanCompatible
from benchmarks.studies.auto.problem import Problem
from benchmarks.studies.auto.settings import SETTINGS
from benchmarks.studies.auto.ways import Auto, Fixed, Held

DECADES = [10.0**k for k in range(-10, 4)]
UNITS = ((1e3, 1e-4), (1e-3, 1e4), (1e3, 1e4), (1e-3, 1e-4))  # of objective and measure
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
    **how: Any,
) -> list[Row]:
    """One row per cell: [violation, suboptimality] of each way, in shares."""
    found = run(problem, best, cells, ways, length=length, seed=seed, **how)
    return [
        {
            "kind": kind, "problem": problem.name, "seed": seed, **cell._asdict(),
            "ways": {name: each[i].tolist() for name, each in found.items()},
        }
        for i, cell in enumerate(cells)
    ]  # fmt: skip


class Comparison:
    """The runs, a kind after the other; what is finished is kept, and not run again.

    Args:
        suite: the problems.
        length: steps of a run.
        kept: a folder for a file per kind, problem and side; `None` keeps nothing.
    """

    def __init__(
        self, suite: Sequence[type[Problem]], length: int, kept: Path | None = None
    ) -> None:
        self.problems = [kind() for kind in suite]
        self.length, self.kept = length, kept
        self.optima: dict[str, Optimum] = {}

    def run(self, kind: str, side: str) -> Iterator[list[Row]]:
        """Each problem's rows, of the kinds that suit it: of the rule or of what it is next to."""
        for problem in self.problems:
            is_noise = kind in NOISY or side == "held"
            if (problem.batch or not is_noise) and side in KINDS[kind]()[0]["ways"]:
                yield self.of(kind, side, problem)

    def of(self, kind: str, side: str, problem: Problem) -> list[Row]:
        """One problem's rows, read where they were kept."""
        name = f"{kind}-{side}-{problem.name}-{self.length}.json"
        file = None if self.kept is None else self.kept / name
        if file is not None and file.exists():
            return json.loads(file.read_text())["rows"]
        if problem.name not in self.optima:
            self.optima[problem.name] = optimum(problem)
        best, found = self.optima[problem.name], list[Row]()
        for how in KINDS[kind]():
            given = {**how, "ways": how["ways"][side](problem, best)}
            found += rows(problem, best, kind=kind, length=self.length, **given)
        if file is not None:
            write_json(file, {"rows": found})
        return found


def joined(parts: Sequence[Row]) -> list[Row]:
    """Rows of the same cell as one, with the ways of all."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in parts:
        key = tuple(v for name, v in sorted(row.items()) if name != "ways")
        mine = found.setdefault(key, {**row, "ways": {}})
        mine["ways"] = {**mine["ways"], **row["ways"]}
    return list(found.values())


def rule(*_: Any) -> Ways:
    """The rule, in a fleet of its own, for it reads the whole gradient of its parameter."""
    return {"auto": (Auto(), 1)}


def others(*_: Any) -> Ways:
    return {**fixed(), **peers()}


def held(problem: Problem, best: Optimum) -> Ways:
    """The multiplier that the rule is to find, of a problem with noise."""
    assert best.theta is not None
    return {"held": (Held(multiplier(problem, best.theta)), 1)}


PLAIN = [Cell(name) for name in SETTINGS]
OTHER = [Cell(name, *units) for units in UNITS for name in ("sgd", "adam", "rmsprop")]
SIDES = {"rule": rule, "others": others, "held": held}
KINDS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "main": lambda: [{"cells": PLAIN, "ways": SIDES}],
    "seeds": lambda: [{"cells": PLAIN, "ways": SIDES, "seed": seed} for seed in (1, 2)],
    "fresh": lambda: [
        {"cells": PLAIN, "ways": SIDES, "seed": seed, "is_fresh": True} for seed in range(3)
    ],
    "float32": lambda: [{"cells": PLAIN, "ways": {"rule": rule}, "dtype": torch.float32}],
    "units": lambda: [{"cells": OTHER, "ways": {"rule": rule, "others": lambda *_: peers()}}],
    "cadence": lambda: [{"cells": PLAIN, "ways": {"others": lambda *_: fixed(20)}}],
}
NOISY = ("seeds", "fresh")
