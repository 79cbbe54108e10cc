"""Figures of the thresholds, each for a light and for a dark page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.report.figures import save_themed
from benchmarks.report.results import Row
from benchmarks.studies.thresholds.variants import SEARCHES

PANELS = (
    ("model_utility", "model utility"),
    ("forget_loss", "forget loss (nats per token)"),
    ("membership_auc", "membership AUC"),
)
MARKS = "osD^vP*X"


def draw(rows: Sequence[Row], labels: dict[str, str], part: str, path: Path) -> None:
    """Every figure of a part, `*-light.png` and `*-dark.png`."""
    if part in SEARCHES:
        return
    figure_of = by_pressure if part == "pressures" else by_rate
    save_themed(lambda: figure_of(rows, labels), path, part)


def by_rate(rows: Sequence[Row], labels: dict[str, str]) -> Figure:
    """Draw what is kept and what is forgotten over learning rates, a line per variant."""
    figure = Figure(figsize=(13, 5.4), layout="constrained")
    every = list(figure.subplots(1, len(PANELS)))
    for axes, (key, title) in zip(every, PANELS, strict=True):
        for at, (name, label) in enumerate(labels.items()):
            line(axes, [r for r in rows if r.get("variant") == name], "rate", key, label, at)
        level(axes, rows, key)
        axes.set(xscale="log", xlabel="learning rate", title=title)
    every[1].set_yscale("log")
    figure.legend(*every[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def line(axes: Axes, rows: Sequence[Row], x: str, y: str, label: str, at: int) -> None:
    """Means over seeds; the step's pressure solid, the gradient's dashed, a colour per target."""
    rows = [row for row in rows if row.get(y) is not None]
    xs = sorted({row[x] for row in rows})
    ys = [fmean(row[y] for row in rows if row[x] == value) for value in xs]
    solid = label.endswith("step") or at == 0
    colour = "0.5" if at == 0 else f"C{(at - 1) // 2}"
    look = "-" if solid else "--"
    axes.plot(xs, ys, look, marker=MARKS[(at + 1) // 2 % 8], color=colour, label=label, ms=5)


def level(axes: Axes, rows: Sequence[Row], key: str) -> None:
    """The model that never saw the forget set."""
    found = [r[key] for r in rows if r["method"] == "retrained" and r.get(key) is not None]
    if found:
        axes.axhline(found[0], color="0.5", linewidth=0.8, linestyle=":", label="retrained model")


PRESSURE = (
    ("model_utility", "model utility"),
    ("overshoot", "overshoot beyond α (nats)"),
    ("met_at", "first step that meets α"),
)


def by_pressure(rows: Sequence[Row], labels: dict[str, str]) -> Figure:
    """Over mu: what is kept, how far alpha is overshot, and when it is first met."""
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    every = list(figure.subplots(1, len(PRESSURE)))
    for axes, (key, title) in zip(every, PRESSURE, strict=True):
        for at, start in enumerate(("0", "1")):
            steps, gates = (aimed(rows, f"{scale}-start{start}") for scale in ("step", "gradient"))
            known = [{**row, "mu": float(row["variant"].rpartition("mu")[2])} for row in steps]
            line(axes, known, "mu", key, f"λ₀ = {start}, step", 2 * at + 2)
            flat = [row[key] for row in gates if row.get(key) is not None]
            if flat:
                axes.axhline(fmean(flat), ls="--", color=f"C{at}", label=f"λ₀ = {start}, gradient")
        axes.set(xscale="log", xlabel="μ", title=title)
    figure.legend(*every[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def aimed(rows: Sequence[Row], target: str) -> list[Row]:
    """The runs of the variants whose keys begin with a target."""
    return [row for row in rows if row.get("variant", "").startswith(f"{target}-")]
