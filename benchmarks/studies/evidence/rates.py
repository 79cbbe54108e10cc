"""The control, the retain side alone, at each learning rate that a matched search chose."""

from __future__ import annotations

import re
from collections.abc import Iterator

from benchmarks.methods import CONTROL
from benchmarks.report.tables import markdown, name_of
from benchmarks.studies.evidence.plan import RATES
from benchmarks.studies.evidence.recorded import Recorded
from benchmarks.studies.evidence.tables import RETAINED, ROUGE, SPLITS, UTILITY, numbers

BEFORE = "1e-3"
"""The rate of the preset that was searched around."""

CHOSEN = re.compile(r"'lr': ([^,}]+)")
SHOWN = (UTILITY, RETAINED, ROUGE)


def rates(found: Recorded) -> str:
    """Table the control at each rate, beside the methods whose reported setting has that rate."""
    head = ["split", "learning rate", "seeds", *(title for _, title, _ in SHOWN)]
    return markdown([*head, "what the search chose at this rate"], _lines(found))


def _lines(found: Recorded) -> Iterator[list[str]]:
    for split in SPLITS:
        for rate in sorted((BEFORE, *RATES), key=float):
            point = "recommended" if rate == BEFORE else rate
            rows = found.of(f"{split}-control-{point}", CONTROL)
            cells = [numbers(rows, key, digits) for key, _, digits in SHOWN]
            chosen = ", ".join(name_of(m) for m in searched(found, f"{split}-matched", rate))
            yield [split, rate, str(len(rows)), *cells, chosen or "nothing"]


def searched(found: Recorded, stage: str, rate: str) -> list[str]:
    """List the methods for which the search of a stage chose this rate."""
    verdicts = found.matched.get(stage, {})
    return [method for method, told in verdicts.items() if _rate(told) == float(rate)]


def _rate(verdict: str) -> float:
    """Read the rate that a verdict names; the preset's where it names none."""
    named = CHOSEN.search(verdict)
    return float(named[1] if named else BEFORE)
