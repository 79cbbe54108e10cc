"""The control: what a table could show at best, since the retain side has a cost of its own."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from benchmarks.methods import CONTROL
from benchmarks.report.layout import Axis
from benchmarks.report.results import Row

ALLOWED = 0.01
"""The part of the original model's utility that the retain side alone may lose."""


def note(rows: Sequence[Row], utility: Axis) -> str:
    """A sentence on what the retain side alone keeps, a warning where it loses too much.

    Args:
        rows: Results of one benchmark; the original model and the control among them, or not.
        utility: The number that says what a model is still worth.
    """
    before, alone = (mean(rows, key, utility.key) for key in ("original", CONTROL))
    if before is not None and alone is None and any(row["method"] == CONTROL for row in rows):
        return (
            f"**The control does not hold**: {utility.label} could not be measured after the "
            "retain side alone, so do not use this table for claims. Is `--lr` too large?"
        )
    if before is None or alone is None:
        return (
            "**No control**: nothing here says what the retain side alone costs at these settings, "
            "so the methods' losses may be its own."
        )
    kept = f"the retain side alone takes {utility.label} from {before:.3f} to {alone:.3f}"
    if before - alone <= ALLOWED:
        return f"The control holds: {kept}."
    return (
        f"**The control does not hold**: {kept}, a loss of more than {ALLOWED}. No method at these "
        "settings can keep more; do not use this table for claims. Would a smaller `--lr` or fewer "
        "`--epochs` do?"
    )


def mean(rows: Sequence[Row], method: str, key: str) -> float | None:
    """The mean over the seeds of a method; None where one is missing, or all are."""
    found = [row.get(key) for row in rows if row["method"] == method]
    return fmean(found) if found and None not in found else None
