"""Tables and figures of recorded runs: searched without a controller beside asked for with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.methods import CONTROL, with_controller
from benchmarks.report.control import ALLOWED
from benchmarks.report.figures import colour, save_themed
from benchmarks.report.paired import Pair, interval, mean, of
from benchmarks.report.results import read_lines
from benchmarks.report.tables import MISSING, Cell, included, markdown, name_of
from benchmarks.studies.operating_point import frontier
from benchmarks.studies.operating_point.plan import (
    EVERY,
    FORGOTTEN,
    KINDS,
    RATES,
    SHARES,
    UTILITY,
    Place,
)
from torch_alm.unlearning.files import write_text

READ = Place("", base=Path("pretrained"))
REPLAYED = replace(READ, replay=True)
PLACES = (
    Place("world"),
    *(
        replace(place, split=f"forget{size}")
        for place in (Place(""), READ, replace(READ, lora=16), REPLAYED, replace(REPLAYED, lora=16))
        for size in ("01", "05", "10")
    ),
    *(
        Place(f"forget{size}", methods=EVERY, epochs=epochs, unseen=unseen, finer=finer)
        for size, epochs in (("01", 0), ("05", 10), ("10", 10))
        for unseen in ("", *SHARES)
        for finer in (False, True)
        if epochs or unseen or finer
    ),
    *(
        replace(REPLAYED, split="forget01", methods=EVERY, lora=16, unseen=unseen, finer=finer)
        for unseen in SHARES
        for finer in (False, True)
    ),
)
SHOWN = 0.05  # of utility below the lowest control; a figure says what is lower still
HEADERS = (
    *("rate", "control", "method", "searched: MU", "forget ROUGE-L"),
    *("asked: MU", "forget ROUGE-L", "asked − searched (95 %)"),
)


def write(folder: Path) -> None:
    """A table of every place that was recorded, and a figure where there are several rates."""
    for place in PLACES:
        lines = list(table(folder, place))
        if not lines:
            continue
        level = f"Enough is a forget ROUGE-L of {place.level}; a value above it is marked †."
        text = included(markdown(HEADERS, lines))
        write_text(folder / f"{place.name}.md", f"# {place.name}\n\n{level}\n\n{text}\n")
        if place.finer and len(lines) > 1:
            save_themed(partial(frontier.draw, folder, place, lines[0][0]), folder, place.name)
        if len({rate for rate, *_ in lines}) > 2:  # two points make no line worth drawing
            save_themed(partial(draw, folder, place), folder, place.name)


def table(folder: Path, place: Place) -> Iterator[list[str]]:
    """Yield the cells of every method at every rate; a rate whose control fails says so."""
    for rate in place.rates:
        kept, before = control(folder / place.folder(rate, "searched"))
        for method in place.methods:
            pair = read(folder, place, rate, method)
            compared = pair.given and pair.without
            if not (compared if place.finer else pair.given or (pair.without and not place.unseen)):
                continue
            plain, asked = pair.means(UTILITY)
            said, heard = pair.means(FORGOTTEN)
            yield [
                *(rate, held(kept, before), name_of(method)),
                *(
                    Cell(plain).text(3),
                    level(said, place),
                    Cell(asked).text(3),
                    level(heard, place),
                ),
                interval(pair.gain(UTILITY)),
            ]


def read(folder: Path, place: Place, rate: str, method: str) -> Pair:
    """The fresh runs of a method at a rate."""
    searched, asked = (read_lines(folder / place.folder(rate, k) / "results.jsonl") for k in KINDS)
    return Pair(of(searched, method), of(asked, with_controller(method)))


def control(folder: Path) -> tuple[float | None, float | None]:
    """The utility of the retain side alone, and of the original model, in a folder of runs."""
    rows = read_lines(folder / "results.jsonl")
    return mean(of(rows, CONTROL), UTILITY), mean(of(rows, "original"), UTILITY)


def held(alone: float | None, before: float | None) -> str:
    """Show what the control keeps; in brackets where that is too little for claims."""
    if alone is None or before is None:
        return MISSING
    return f"{alone:.3f}" if before - alone <= ALLOWED else f"({alone:.3f})"


def level(value: float | None, place: Place) -> str:
    """Forgetting, marked where it is not enough."""
    mark = "†" if value is not None and value > float(place.level) else ""
    return Cell(value).text(2) + mark


def draw(folder: Path, place: Place) -> Figure:
    """Draw utility over the learning rate, a panel per method, with the control above them."""
    figure = Figure(figsize=(3.1 * len(place.methods), 3.8), layout="constrained")
    every = figure.subplots(1, len(place.methods), squeeze=False, sharey=True)[0]
    kept = {rate: control(folder / place.folder(rate, "searched"))[0] for rate in RATES}
    alone = {float(rate): utility for rate, utility in kept.items() if utility is not None}
    for axes, method in zip(every, place.methods, strict=True):
        panel(axes, folder, place, method, alone)
    every[0].set_ylabel("model utility")
    figure.legend(*every[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def panel(axes: Axes, folder: Path, place: Place, method: str, alone: dict[float, float]) -> None:
    """Draw the lines of a method; hollow where it has not forgotten enough."""
    lowest = min(alone.values()) - SHOWN
    ink = rcParams["text.color"]  # no method has it
    axes.plot([*alone], [*alone.values()], ":", color=ink, label="retain side alone")
    pairs = [read(folder, place, rate, method) for rate in RATES if float(rate) in alone]
    for at, (label, look) in enumerate((("eight searched", "--"), ("one, with +ALM", "-"))):
        utilities = [pair.means(UTILITY)[at] for pair in pairs]
        said = [pair.means(FORGOTTEN)[at] for pair in pairs]
        found = [(x, y, f) for x, y, f in zip(alone, utilities, said, strict=True) if y is not None]
        shown = [(x, max(y, lowest), f) for x, y, f in found]
        for x, y, _ in found:
            if y < lowest:
                axes.annotate(f"↓ {y:.2f}", (x, lowest), xytext=(6, 0), textcoords="offset points")
        if not shown:
            continue
        paint = colour(method)
        axes.plot(*zip(*[(x, y) for x, y, _ in shown], strict=True), look, color=paint, label=label)
        enough = [paint if f <= float(place.level) else "none" for _, _, f in shown]
        axes.scatter([x for x, _, _ in shown], [y for _, y, _ in shown], c=enough, edgecolors=paint)
    axes.set(xscale="log", xlabel="learning rate", title=name_of(method))
