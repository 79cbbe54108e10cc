"""Tables and figures of finished runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.methods import CONTROL
from benchmarks.report import figures
from benchmarks.report.figures import Axis
from benchmarks.report.results import ResultsFolder, Row, write_text
from benchmarks.report.tables import Column, markdown, name_of, ordered, table

ALLOWED = 0.01
"""The share of the original model's utility that the retain side alone may lose."""


@dataclass(frozen=True)
class Layout:
    """The names of a benchmark's numbers.

    Attributes:
        columns: Of the table.
        forgotten: What is left of the forget set: the horizontal axis of the trade-off.
        utility: The one number that says what a model is still worth: the vertical axis.
        levels: What `--match` may hold fixed, and whether forgetting raises it.
        panels: Titles of the figure of steps, in place of those of cross-entropies.
    """

    columns: tuple[Column, ...]
    forgotten: Axis
    utility: Axis
    levels: Mapping[str, bool]
    panels: Mapping[str, str] = field(default_factory=dict)


def publish(folder: ResultsFolder, layout: Layout) -> None:
    """Print the table of a folder; write its report and figures beside the results."""
    rows = folder.rows()
    shown = markdown(table(rows, layout.columns))
    said = control(rows, layout.utility)
    write_text(folder.path / "report.md", report(folder, [shown, said]))
    traces = {method: folder.read("traces", method, seed) for method, seed in first(rows).items()}
    seen = {method: trace for method, trace in traces.items() if trace}
    figures.training(seen, folder.path / "training.png", layout.panels)
    figures.tradeoff(rows, folder.path / "tradeoff.png", x=layout.forgotten, y=layout.utility)
    print(f"\n{shown}\n\n{said}\n\n{folder.path}: results.jsonl, report.md, figures.")


def report(folder: ResultsFolder, head: list[str]) -> str:
    """Everything of a folder to read on: the table, and notes on the settings."""
    described = folder.described()
    parts = [
        "# Results",
        *head,
        remarks("Notes on the settings", described.get("notes", {})),
        remarks("How settings were found", described.get("matched", {})),
        "What each model answered stands in `answers/`, a line a question.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def first(rows: Sequence[Row]) -> dict[str, int]:
    """The first seed of each method, in the order of the tables."""
    seeds = {row["method"]: row["seed"] for row in reversed(rows)}
    return {method: seeds[method] for method in ordered(rows)}


def remarks(title: str, by_method: Mapping[str, str]) -> str:
    """A section with a line per method, or nothing."""
    found = [f"- {name_of(method)}: {text.rstrip('.')}." for method, text in by_method.items()]
    return "\n\n".join([f"## {title}", "\n".join(found)]) if found else ""


def control(rows: Sequence[Row], utility: Axis) -> str:
    """A sentence on what the retain side alone keeps, a warning where it loses too much.

    What it loses no method at these settings can keep.
    """
    points = figures.points(rows, utility.key)
    if CONTROL not in points or "original" not in points:
        return "No control: nothing here says what the retain side alone costs at these settings."
    (before,), (alone,) = points["original"], points[CONTROL]
    kept = f"the retain side alone takes {utility.label} from {before:.3f} to {alone:.3f}"
    if before - alone <= ALLOWED * before:
        return f"The control holds: {kept}."
    return (
        f"**The control does not hold**: {kept}, a loss of more than {ALLOWED:.0%}. Do not use "
        "this table for claims. Would a smaller `--lr` or fewer `--epochs` do?"
    )
