"""Two kinds of runs on the same seeds, and what the second changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.stats import t as student

from benchmarks.report.results import Row
from benchmarks.report.tables import MISSING

Gain = tuple[float, float]
"""A mean difference and the half-width of its 95 % interval."""


@dataclass(frozen=True)
class Pair:
    """Runs without something, and with it."""

    without: Sequence[Row]
    given: Sequence[Row]

    def means(self, key: str) -> tuple[float | None, float | None]:
        """A number, without and with; None where nothing was run."""
        return mean(self.without, key), mean(self.given, key)

    def gain(self, key: str) -> Gain | None:
        """Mean difference over the seeds that both have, with its interval (Student's t)."""
        plain = {row["seed"]: row[key] for row in self.without}
        with_it = {row["seed"]: row[key] for row in self.given}
        found = [with_it[seed] - plain[seed] for seed in plain.keys() & with_it.keys()]
        if len(found) < 2:
            return None
        half = float(student.ppf(0.975, len(found) - 1)) * stdev(found) / math.sqrt(len(found))
        return fmean(found), half


def of(rows: Sequence[Row], *methods: str) -> list[Row]:
    """The rows of these methods."""
    return [row for row in rows if row["method"] in methods]


def mean(rows: Sequence[Row], key: str) -> float | None:
    """Over seeds."""
    return fmean(row[key] for row in rows) if rows else None


def interval(found: Gain | None, digits: int = 3) -> str:
    """A difference with its interval."""
    return MISSING if found is None else f"{found[0]:+.{digits}f} ± {found[1]:.{digits}f}"
