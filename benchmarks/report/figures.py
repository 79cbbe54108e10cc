"""Figures: what happened in each step, and what it cost in utility."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib import colormaps
from matplotlib import style as styles
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import methods
from benchmarks.report.layout import Axis
from benchmarks.report.results import Row
from benchmarks.report.tables import REFERENCE_LABELS, name_of

Traces = Mapping[str, Sequence[Row]]

THEMES = {"light": "default", "dark": "dark_background"}
PANELS = {
    "lambda": "multiplier λ",
    "violation": "violation α − F (above 0: not yet forgotten)",
    "forget_loss": "forget loss (nats per token)",
    "retain_loss": "retain loss (nats per token)",
}


def training(traces: Traces, path: Path, titles: Mapping[str, str] | None = None) -> None:
    """lambda, violation and both losses over steps, one line per method.

    Losses are those the method computed: under SAM, at the perturbed weights.
    """
    figure = Figure(figsize=(11, 7), layout="constrained")
    panels = PANELS | (titles or {})
    for axes, (key, title) in zip(figure.subplots(2, 2).flat, panels.items(), strict=True):
        for method, steps in traces.items():
            _line(axes, method, [row for row in steps if row.get(key) is not None], key)
        axes.set(title=title, xlabel="step")
        axes.xaxis.get_major_locator().set_params(integer=True)
        if key == "violation":
            axes.axhline(0.0, color="0.6", linewidth=0.8)
    handles = {line.get_label(): line for axes in figure.axes for line in axes.get_lines()}
    shown = {name: line for name, line in handles.items() if not str(name).startswith("_")}
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=4)
    save(figure, path)


def _line(axes: Axes, method: str, steps: Sequence[Row], key: str) -> None:
    xs, ys = [row["step"] for row in steps], [row[key] for row in steps]
    look = {"color": colour(method), "linestyle": dash(method)}
    axes.plot(xs, ys, label=name_of(method), linewidth=2.5 if method == "saul" else 1.5, **look)


def tradeoff(rows: Sequence[Row], path: Path, *, x: Axis, y: Axis) -> None:
    """Utility against what is left of the forget set; a grey line from a baseline to its +ALM."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    points = _points(rows, x.key, y.key)
    for method, point in points.items():
        look = {"color": colour(method), "marker": marker(method), "label": name_of(method)}
        order = 3 if method == "saul" else 2
        axes.scatter(*point, zorder=order, alpha=0.7, **look)  # points below others show through
        if f"{method}+alm" in points:
            xs, ys = zip(point, points[f"{method}+alm"], strict=True)
            axes.plot(xs, ys, color="0.7", linewidth=1.0, zorder=1)
    axes.set(xlabel=x.label, ylabel=y.label)
    figure.legend(loc="outside right upper", fontsize="small")
    save(figure, path)


def _points(rows: Sequence[Row], x: str, y: str) -> dict[str, tuple[float, float]]:
    """Means over seeds of the methods that have both numbers."""
    points = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        pairs = [(r.get(x), r.get(y)) for r in rows if r["method"] == method]
        if all(None not in pair for pair in pairs):
            points[method] = (fmean(a for a, _ in pairs), fmean(b for _, b in pairs))
    return points


def utility_per_split(splits: Mapping[str, Sequence[Row]], path: Path, *, y: Axis) -> None:
    """Utility of each baseline beside its +ALM, for every split there are results of."""
    figure = Figure(figsize=(3 + 4 * len(splits), 4), layout="constrained")
    axes = figure.subplots(1, len(splits), squeeze=False, sharey=True)[0]
    for panel, (split, rows) in zip(axes, splits.items(), strict=True):
        heights = {method: v for method, (v, _) in _points(rows, y.key, y.key).items()}
        for at, (method, height) in enumerate(heights.items()):
            panel.bar(at, height, color=colour(method), hatch="//" if is_controlled(method) else "")
        names = [name_of(method) for method in heights]
        panel.set_xticks(range(len(heights)), names, rotation=60, ha="right", fontsize=7)
        panel.set(title=split)
    axes[0].set_ylabel(y.label)
    save(figure, path)


def colour(method: str) -> tuple[float, float, float, float] | str:
    """A baseline and its +ALM share a colour; it does not depend on which methods are shown."""
    fixed = {**dict.fromkeys(REFERENCE_LABELS, "black"), "saul": "crimson"}
    if method in fixed:
        return fixed[method]
    plain = [key for key in methods.names("any") if not key.endswith("+alm")]
    baselines = [key for key in plain if key not in fixed]
    at = baselines.index(method.removesuffix("+alm"))
    return colormaps["tab20"](2 * at % 20 + 2 * at // 20)


def is_controlled(method: str) -> bool:
    """True if the controller weighs its forget side; a reference has none."""
    return method not in REFERENCE_LABELS and methods.is_controlled(method)


def dash(method: str) -> str:
    """Solid with the controller, dashed without."""
    return "-" if is_controlled(method) else "--"


def marker(method: str) -> str:
    """Circles without the controller, triangles with it, a star for SAUL, others for references."""
    if method in REFERENCE_LABELS:
        return "sDX"[[*REFERENCE_LABELS].index(method)]
    return "*" if method == "saul" else "^" if is_controlled(method) else "o"


def save_themed(draw: Callable[[], Figure], folder: Path, name: str) -> None:
    """`NAME-light.png` and `NAME-dark.png`, a figure for each kind of page."""
    for theme, style in THEMES.items():
        with styles.context(style):
            save(draw(), folder / f"{name}-{theme}.png")


def save(figure: Figure, path: Path) -> None:
    """Write a PNG under a temporary name, then take the name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}")
    figure.savefig(draft, format="png", dpi=150)
    draft.replace(path)
