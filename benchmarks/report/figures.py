"""A figure of what happened in each step."""

from collections.abc import Mapping, Sequence
from math import isclose
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from matplotlib import colormaps
from matplotlib.figure import Figure

from benchmarks import methods
from benchmarks.report.results import Row
from benchmarks.report.tables import REFERENCES, name_of

PANELS = {
    "weight": "weight that the constraint gives (0: the forget side rests)",
    "violation": "goal less what is measured (at most 0: it is met)",
    "forget_loss": "forget loss (nats per token)",
    "retain_loss": "retain loss (nats per token)",
}


class Axis(NamedTuple):
    """A number on an axis of a figure."""

    key: str
    label: str


def plot_training(
    traces: Mapping[str, Sequence[Row]], path: Path, titles: Mapping[str, str] | None = None
) -> None:
    """Weight, violation and both losses over steps, one line per method; dotted: the goal.

    Losses are those the method computed: under SAM, at the perturbed weights.
    """
    figure = Figure(figsize=(11, 7), layout="constrained")
    panels = PANELS | dict(titles or {})
    for axes, (key, title) in zip(figure.subplots(2, 2).flat, panels.items(), strict=True):
        for method, steps in traces.items():
            sought = key != "weight" or methods.is_controlled(method)  # others' never changes
            measured = [row for row in steps if sought and row.get(key) is not None]
            xs, ys = [row["step"] for row in measured], [row[key] for row in measured]
            line = "-" if methods.is_controlled(method) else "--"
            axes.plot(xs, ys, label=name_of(method), color=colour(method), linestyle=line)
        axes.set(title=title, xlabel="step")
        axes.xaxis.get_major_locator().set_params(integer=True)
        if key == "violation":
            axes.axhline(0.0, color="0.4", linestyle=":", label="the goal")
        if key == "forget_loss":
            for goal in {goal for steps in traces.values() for goal in goal_heights(steps)}:
                axes.axhline(goal, color="0.4", linestyle=":")
    lines = {line.get_label(): line for axes in figure.axes for line in axes.get_lines()}
    named = {label: line for label, line in lines.items() if not str(label).startswith("_")}
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=150)


def goal_heights(steps: Sequence[Row]) -> set[float]:
    """Alpha, where the constraint measures the forget loss itself: a height in its panel."""
    return {
        row["alpha"]
        for row in steps
        if row.get("violation") and row.get("forget_loss") is not None
        if isclose(abs(row["alpha"] - row["forget_loss"]), abs(row["violation"]), rel_tol=1e-5)
    }


def points(rows: Sequence[Row], *keys: str) -> dict[str, tuple[float, ...]]:
    """Means over seeds of the methods that have all these numbers for every seed."""
    found = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        values = [[row.get(key) for key in keys] for row in rows if row["method"] == method]
        if all(None not in each for each in values):
            found[method] = tuple(fmean(each) for each in zip(*values, strict=True))
    return found


def colour(method: str) -> tuple[float, ...] | str:
    """A baseline and its +ALM share a colour; it does not depend on which methods are shown."""
    if method in REFERENCES:
        return "black"
    plain = [key for key in methods.names("any") if not key.endswith(methods.ALM)]
    at = plain.index(method.removesuffix(methods.ALM))
    return colormaps["tab20"](2 * at % 20 + 2 * at // 20)
