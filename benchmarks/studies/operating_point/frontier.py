"""Figure of all that a search has tried: utility over how much is said, with `+ALM` beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.methods import CONTROL, with_controller
from benchmarks.report.figures import colour
from benchmarks.report.paired import mean, of
from benchmarks.report.results import Row, read_lines
from benchmarks.report.tables import name_of
from benchmarks.studies.operating_point.plan import FORGOTTEN, KINDS, UTILITY, Place


def draw(folder: Path, place: Place, rate: str) -> Figure:
    """Draw a panel for every method that was searched and asked, with one seed a mark."""
    searched, asked = (folder / place.folder(rate, kind) for kind in KINDS)
    tried, fresh = (read_lines(searched / f"{name}.jsonl") for name in ("trials", "results"))
    controlled = read_lines(asked / "results.jsonl")
    kept = mean(of(fresh, CONTROL), UTILITY)
    ran = {row["method"] for row in fresh}
    methods = [m for m in place.methods if m in ran and of(controlled, with_controller(m))]
    figure = Figure(figsize=(3.1 * len(methods), 3.8), layout="constrained")
    every = figure.subplots(1, len(methods), squeeze=False, sharex=True, sharey=True)[0]
    for axes, method in zip(every, methods, strict=True):
        axes.axvline(float(place.level), color="0.6", linewidth=0.8, label="enough, left of it")
        if kept is not None:
            axes.axhline(kept, ls=":", color=rcParams["text.color"], label="retain side alone")
        paint = colour(method)
        settings = [row for row in of(tried, method) if row["evaluated"]]
        _marks(axes, settings, "o--", paint, "settings tried, another seed", hollow=True)
        _marks(axes, of(fresh, method), "o", paint, "the best of them")
        _marks(axes, of(controlled, with_controller(method)), "^", paint, "one, with +ALM")
        axes.set(title=name_of(method), xlabel="forget ROUGE-L")
    every[0].set_ylabel("model utility")
    told = every[0].get_legend_handles_labels()
    figure.legend(*told, loc="outside lower center", ncols=max(2, len(methods)))
    return figure


def _marks(
    axes: Axes, rows: Sequence[Row], look: str, paint: object, label: str, *, hollow: bool = False
) -> None:
    found = sorted((row[FORGOTTEN], row[UTILITY]) for row in rows)
    if found:
        fill = {"markerfacecolor": "none"} if hollow else {"zorder": 3}
        axes.plot(*zip(*found, strict=True), look, color=paint, label=label, **fill)
