"""Marks of forget qualities that say less than they seem to."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.report.results import Row
from benchmarks.report.tables import AT_FLOOR, FLOOR_ROUNDING
from benchmarks.tasks.tofu.metrics import log10_smallest_forget_quality
from benchmarks.tasks.tofu.truth import EPSILON

QUALITY = "forget_quality_log10"
QUESTIONS = 40  # asked of each set in every stage
FLOOR = log10_smallest_forget_quality(QUESTIONS, QUESTIONS)
GUARD = -math.log(EPSILON)
"""The loss, in nats per token, beyond which the guard of truth ratios is the larger summand."""


def marked(text: str, rows: Sequence[Row]) -> str:
    """The cell with `≤` for a run at the smallest possible value and † for one beyond the guard."""
    bound = AT_FLOOR if any(map(is_at_floor, rows)) else ""
    return f"{bound}{text}{' †' if any(map(is_guarded, rows)) else ''}"


def is_at_floor(row: Row) -> bool:
    """Tell whether its forget quality is the smallest that so many questions can give."""
    return row.get(QUALITY) is not None and row[QUALITY] <= FLOOR + FLOOR_ROUNDING


def is_guarded(row: Row) -> bool:
    """Tell whether its mean forget loss is where the guard decides truth ratios."""
    return (row.get("forget_loss") or 0.0) > GUARD
