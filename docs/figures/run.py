"""Violation, multiplier and gate over a recorded run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

RECORDED = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "forget01-saul.json"


def recorded() -> dict[str, Any]:
    """The run, as `docs/record_trace.py` kept it."""
    return json.loads(RECORDED.read_text())


def open_steps(weights: list[float]) -> list[int]:
    """The steps, from 1, on which the gate is open."""
    return [step for step, weight in enumerate(weights, start=1) if weight > 0]


def alt() -> str:
    """Describe the drawing in numbers."""
    run = recorded()
    steps = run["steps"]
    opened = open_steps(steps["weight"])
    met = next(i for i, c in enumerate(steps["violation"], start=1) if c is not None and c <= 0)
    return (
        f"Three panels over {len(steps['weight'])} steps. The violation is positive until step "
        f"{met - 1} and negative from step {met}. The multiplier climbs to "
        f"{max(steps['lambda']):.1f} until then and falls back to 0. The gate is open on "
        f"{len(opened)} steps, the last of them step {opened[-1]}."
    )


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
