"""Violation, multiplier and gate over a recorded run: `python -m docs.figures.run`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from docs.figures import themes

RECORDED = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "forget01-saul.json"


def recorded() -> dict[str, Any]:
    """Read the settings of the run, and its numbers per step."""
    return json.loads(RECORDED.read_text())


def open_steps(weights: list[float]) -> list[int]:
    """The steps, from 1, on which the gate is open."""
    return [step for step, weight in enumerate(weights, start=1) if weight > 0]


def figure(colours: dict[str, str]) -> Figure:
    """The drawing."""
    steps = recorded()["steps"]
    drawn = Figure(figsize=(6.6, 6.2), layout="constrained")
    violation, price, gate = drawn.subplots(3, 1, sharex=True, height_ratios=(3, 3, 1))
    xs = range(1, len(steps["weight"]) + 1)
    violation.plot(xs, steps["violation"], color=colours["forget"])
    violation.axhline(0, color=colours["ink"], lw=1.0)
    violation.set_title("violation c = α - F: above 0, more has to be forgotten", loc="left")
    price.plot(xs, steps["lambda"], color=colours["retain"])
    price.set_title("multiplier λ", loc="left")
    gate.step(xs, [weight > 0 for weight in steps["weight"]], where="mid", color=colours["ink"])
    gate.set(ylim=(-0.2, 1.2), yticks=[0, 1], xlabel="step", xlim=(1, len(xs)))
    gate.set_yticklabels(["closed", "open"])
    gate.set_title("gate", loc="left")
    for axes in (violation, price, gate):
        shade(axes, steps["weight"], colours["soft"])
    return drawn


def shade(axes: Axes, weights: list[float], colour: str) -> None:
    """A stripe over every step on which the gate is open."""
    axes.title.set_fontsize(13)
    for step in open_steps(weights):
        axes.axvspan(step - 0.5, step + 0.5, color=colour, alpha=0.3, lw=0)


if __name__ == "__main__":
    themes.save("run", figure)
