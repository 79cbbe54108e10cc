"""Lines over the steps of a run as inline SVG, coloured by the page around it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

WIDTH, HEIGHT = 480, 190
LEFT, RIGHT, TOP, BOTTOM = 62, 10, 12, 34
POINTS = 300  # more could not be told apart


@dataclass(frozen=True)
class Chart:
    """One line, and what it is compared with.

    Attributes:
        title: what the line shows.
        values: one per step.
        level: a dashed horizontal line, or None.
        is_open: per step whether the gate was open; shaded.
    """

    title: str
    values: Sequence[float]
    level: float | None
    is_open: Sequence[bool]

    @property
    def points(self) -> str:
        """The line, as SVG writes it."""
        shown = thinned(self.values)
        return " ".join(f"{self._x(step):.1f},{self._y(value):.1f}" for step, value in shown)

    @property
    def bands(self) -> list[tuple[float, float]]:
        """Left edge and width of each stretch of steps with an open gate."""
        found: list[tuple[float, float]] = []
        for is_open, group in groupby(range(len(self.is_open)), self.is_open.__getitem__):
            steps = [*group]
            if is_open:
                left, right = self._x(steps[0] - 0.5), self._x(steps[-1] + 0.5)
                found.append((left, right - left))
        return found

    @property
    def y_ticks(self) -> list[tuple[float, str]]:
        """Height and label of the marks of the value axis."""
        return [(self._y(v), f"{v:.3g}") for v in ticks(*self._range)]

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        """Place and label of the first, the middle and the last step."""
        last = len(self.values) - 1
        return [(self._x(i), str(i + 1)) for i in sorted({0, last // 2, last})]

    @property
    def level_y(self) -> float | None:
        """Height of the dashed line."""
        return None if self.level is None else self._y(self.level)

    @property
    def _range(self) -> tuple[float, float]:
        known = [v for v in self.values if math.isfinite(v)]
        known += [0.0] if self.level is None else [0.0, self.level]
        low, high = min(known), max(known)
        return low, high if high > low else low + 1.0

    def _x(self, step: float) -> float:
        span = max(len(self.values) - 1, 1)
        x = LEFT + (WIDTH - LEFT - RIGHT) * step / span
        return min(max(x, LEFT), WIDTH - RIGHT)

    def _y(self, value: float) -> float:
        low, high = self._range
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)


def thinned(values: Sequence[float]) -> list[tuple[float, float]]:
    """At most POINTS pairs of step and value: means of as many steps as need be, none left out."""
    known = [(float(i), v) for i, v in enumerate(values) if math.isfinite(v)]
    size = max(1, math.ceil(len(known) / POINTS))
    groups = [known[i : i + size] for i in range(0, len(known), size)]
    return [(fmean(i for i, _ in g), fmean(v for _, v in g)) for g in groups]


def ticks(low: float, high: float) -> list[float]:
    """Two to six round numbers from low to high."""
    step = 10.0 ** math.floor(math.log10(high - low))
    step = next(step * f for f in (0.2, 0.5, 1.0, 2.0) if (high - low) / (step * f) <= 5)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]
