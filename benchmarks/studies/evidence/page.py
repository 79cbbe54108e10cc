"""Write `results/README.md` anew: tables and figures from recorded lines, words as they are.

A table stands between two marks, `<!-- table: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.report.results import RECORDED
from benchmarks.studies.evidence import claims, tables
from benchmarks.studies.evidence.figures import draw
from benchmarks.studies.evidence.plan import PLAN
from benchmarks.studies.evidence.rates import rates
from benchmarks.studies.evidence.recorded import Recorded, read
from torch_alm.unlearning.files import write_text

PAGE = RECORDED / "README.md"
MARKED = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)

POINTS = (*tables.POINTS, "preset", "paper")
TABLES: Mapping[str, Callable[[Recorded], str]] = {
    "commands": tables.commands,
    **{f"pairs {point}": tables.pairs_at(point) for point in POINTS},
    **{f"all {point}": tables.everything_at(point) for point in POINTS},
    "gains": tables.gains,
    "gained": claims.gained,
    "differences": claims.differences,
    "rates": rates,
    "guard": tables.guard,
    "asked more": tables.asked_more,
    "varied": tables.varied,
    "words": tables.words,
    "parts": tables.parts,
    "alpha": tables.thresholds,
    "reach": tables.reach,
    "control": tables.control,
    "cost": tables.cost,
    "attacks": tables.attacks,
}


def write(recorded: Path) -> None:
    """The page and its figures, from what is recorded.

    Raises:
        ValueError: The page asks for a table that is not known.
    """
    found = read(recorded, [stage.name for stage in PLAN])
    write_text(PAGE, filled(PAGE.read_text(encoding="utf-8"), found))
    draw(found, recorded)


def filled(text: str, found: Recorded) -> str:
    """The page with every table written from the lines."""

    def table(match: re.Match[str]) -> str:
        opening, name, closing = match.groups()
        if name not in TABLES:
            raise ValueError(f"{PAGE.name} asks for {name!r}. Did you mean {', '.join(TABLES)}?")
        return f"{opening}\n{TABLES[name](found)}\n\n{closing}"

    return MARKED.sub(table, text)
