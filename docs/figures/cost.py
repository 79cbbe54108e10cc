"""Costs of a step beside one of Dual AdamW, as `benchmarks/studies/cost` found them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

RECORDED = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "cost.json"


def ratios(part: str) -> dict[str, float]:
    """Ratio by method, of the smallest model where there are several."""
    rows: list[dict[str, Any]] = json.loads(RECORDED.read_text())[part]["rows"]
    return {row["method"]: row["ratio"] for row in rows if row.get("model", "1B") == "1B"}


def alt() -> str:
    """Describe the drawing."""
    counted, timed = ratios("flops"), ratios("wall")
    bars = [f"{name} {counted[name]:.2f} and {timed[name]:.2f}" for name in counted]
    return "Operations and time of a step, relative to Dual AdamW: " + "; ".join(bars) + "."


def figure(colours: dict[str, str]) -> Figure:
    """The drawing."""
    counted, timed = ratios("flops"), ratios("wall")
    drawn = Figure(figsize=(6.6, 7.8), layout="constrained")
    axes = drawn.subplots()
    for at, name in enumerate(counted):
        for shift, found, colour in ((0.1, counted, "retain"), (0.36, timed, "forget")):
            axes.barh(at + shift, found[name], height=0.24, color=colours[colour])
            axes.text(
                found[name] + 0.03, at + shift, f"{found[name]:.2f}", va="center", fontsize=11
            )
        axes.text(0.0, at - 0.2, name, va="center", fontsize=12)
    axes.barh(0, 0, color=colours["retain"], label="operations, 1B, counted")
    axes.barh(0, 0, color=colours["forget"], label="time, small Llama, measured")
    axes.set(yticks=[], xlim=(0, 2.5), xlabel="relative to Dual AdamW")
    axes.invert_yaxis()
    drawn.legend(loc="outside upper left", ncols=2, fontsize=12, borderaxespad=0.1)
    return drawn
