"""Figures of `results/README.md`, each for a light and for a dark page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.report.figures import save_themed
from benchmarks.report.tables import REFERENCE_LABELS, name_of
from benchmarks.studies.evidence.recorded import Recorded
from benchmarks.studies.evidence.tables import ALM, SPLITS, mu, paired

SHOWN = ("dual_adamw+alm", "sharp_min_max+alm", "npo+alm", "blur+alm", "pdu+alm", "saul")


def draw(found: Recorded, path: Path) -> None:
    """`matched-*.png` and `control-*.png`, where there is something to draw."""
    if any(found.lines.get(f"{split}-matched") for split in SPLITS):
        save_themed(lambda: matched(found), path, "matched")
    if found.steps.get("forget01-recommended"):
        save_themed(lambda: control(found), path, "control")


def matched(found: Recorded) -> Figure:
    """Utility at matched forgetting: a ring without the controller, a disc with it, every seed."""
    splits = [split for split in SPLITS if found.lines.get(f"{split}-matched")]
    figure = Figure(figsize=(4 + 3.2 * len(splits), 5), layout="constrained")
    panels = figure.subplots(1, len(splits), squeeze=False)[0]
    for axes, split in zip(panels, splits, strict=True):
        dumbbells(axes, found, f"{split}-matched")
        axes.set(title=split, xlabel="model utility")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def dumbbells(axes: Axes, found: Recorded, stage: str) -> None:
    """One line per method, from its mean without to its mean with the controller."""
    methods = [m for m in found.methods(stage) if not m.endswith(ALM) and m not in REFERENCE_LABELS]
    methods = [m for m in methods if found.of(stage, m)]
    for at, method in enumerate(reversed(methods)):
        plain, controlled = paired(found, stage, method)
        rows = plain or found.of(stage, method)
        ring = {"facecolors": "none", "edgecolors": "crimson" if method == "saul" else "C0"}
        axes.scatter(mu(rows), [at] * len(rows), s=22, label="as it is", **ring)
        if controlled:
            ends = fmean(mu(plain)), fmean(mu(controlled))
            axes.plot(ends, (at, at), color="0.6", linewidth=1.0, zorder=1)
            axes.scatter(mu(controlled), [at] * len(controlled), label="+ALM", color="C1", s=22)
    axes.set_yticks(range(len(methods)), [name_of(method) for method in reversed(methods)])
    unique(axes)


def unique(axes: Axes) -> None:
    """Each label once in the legend."""
    seen: set[str] = set()
    for artist in axes.collections:
        label = str(artist.get_label())
        if label in seen:
            artist.set_label("_again")
        seen.add(label)


def control(found: Recorded) -> Figure:
    """lambda, and the share of seeds whose gate is open, over the steps."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for at, method in enumerate(SHOWN):
        runs = [r for r in found.steps["forget01-recommended"] if r["method"] == method]
        if runs:
            steps = range(1, len(runs[0]["lambda"]) + 1)
            left.plot(
                steps, means([r["lambda"] for r in runs]), label=name_of(method), color=f"C{at}"
            )
            gates = [[float(bool(weight)) for weight in r["weight"]] for r in runs]
            right.plot(steps, means(gates), color=f"C{at}")
    left.set(title="multiplier λ, mean over seeds", xlabel="step")
    right.set(title="share of seeds with an open gate", xlabel="step")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def means(runs: Sequence[Sequence[float | None]]) -> list[float]:
    """Step by step, over what was measured."""
    columns = ([value for value in step if value is not None] for step in zip(*runs, strict=True))
    return [fmean(values) if values else float("nan") for values in columns]
