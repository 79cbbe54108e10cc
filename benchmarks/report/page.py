"""Tables and figures of finished runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.methods import CONTROL, is_controlled
from benchmarks.report import figures
from benchmarks.report.figures import Axis
from benchmarks.report.results import ResultsFolder, Row, write_text
from benchmarks.report.tables import Column, markdown, name_of, sort_methods, table

ALLOWED = 0.01
"""The share of the original model's utility that the retain side alone may lose."""

COLUMNS = 100
"""Of a terminal: a wider table is printed in parts."""

LEGEND = (
    "What the columns mean stands in the repository's `docs/metrics.md`. *pushed*: the share of "
    "steps in which the forget side acted, its weight [λ + μ (goal less measure)]₊ being above 0."
)


@dataclass(frozen=True)
class Layout:
    """The names of a benchmark's numbers.

    Attributes:
        columns: Of the table.
        forgotten: What is left of the forget set: the horizontal axis of the trade-off.
        utility: The one number that says what a model is still worth: the vertical axis.
        panels: Titles of the figure of steps, in place of those of cross-entropies.
    """

    columns: tuple[Column, ...]
    forgotten: Axis
    utility: Axis
    panels: Mapping[str, str] = field(default_factory=dict)


def publish(folder: ResultsFolder, layout: Layout) -> None:
    """Print the table of a folder; write its report and figures beside the results."""
    rows = folder.rows()
    frame = table(rows, layout.columns)
    said = describe_control(rows, layout.utility)
    write_text(folder.path / "report.md", format_report(folder, [markdown(frame), said]))
    traces = {method: folder.read("traces", method, seed) for method, seed in seeds(rows).items()}
    seen = {method: trace for method, trace in traces.items() if trace}
    figures.plot_training(seen, folder.path / "training.png", layout.panels)
    figures.plot_tradeoff(rows, folder.path / "tradeoff.png", x=layout.forgotten, y=layout.utility)
    shown = frame.to_string(line_width=COLUMNS)
    print(f"\n{shown}\n\n{said}\n\n{folder.path}: results.jsonl, report.md, figures.")


def format_report(folder: ResultsFolder, head: list[str]) -> str:
    """Everything of a folder to read on: the table, and notes on the settings."""
    described = folder.read_settings()
    parts = [
        "# Results",
        *head,
        LEGEND,
        format_remarks("What each constraint asks for", list_constraints(described["methods"])),
        format_remarks("Notes on the settings", described.get("notes", {})),
        "What each model answered stands in `answers/`, a line a question.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def list_constraints(settings: Mapping[str, Row]) -> dict[str, str]:
    """The measure and alpha of each method with a constraint, and how it pushes."""
    names = ("mu", "scale", "release", "lr", "forget_lr")
    return {
        key: f"{found['measure']}, goal {found['alpha']}; "
        + ", ".join(f"{name} {found[name]}" for name in names if found.get(name) is not None)
        for key, found in settings.items()
        if is_controlled(key)
    }


def seeds(rows: Sequence[Row]) -> dict[str, int]:
    """The first seed of each method, in the order of the tables."""
    seeds = {row["method"]: row["seed"] for row in reversed(rows)}
    return {method: seeds[method] for method in sort_methods(rows)}


def format_remarks(title: str, by_method: Mapping[str, str]) -> str:
    """A section with a line per method, or nothing."""
    found = [f"- {name_of(method)}: {text.rstrip('.')}." for method, text in by_method.items()]
    return "\n\n".join([f"## {title}", "\n".join(found)]) if found else ""


def describe_control(rows: Sequence[Row], utility: Axis) -> str:
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
