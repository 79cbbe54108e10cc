"""The comparison of controllers as Markdown, from its numbers alone.

The part between the marks is also a part of the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.report import tables

NAMES = {"torch-alm": "torch-alm", "cooper": "cooper", "humancompatible": "humancompatible-train"}
TOLERANCES = (1e-3, 1e-5)


def markdown(found: Mapping[str, Any]) -> str:
    names = [name for name in NAMES if name in found]
    cells = rows(found, names)
    lines = [
        "# Constraint controllers side by side\n",
        "Written by `python -m benchmarks.studies.controllers`; numbers in `controllers.json`.\n",
        tables.included(tables.markdown(["", *(NAMES[name] for name in names)], cells)) + "\n",
        filtered(found),
    ]
    if "more" in found:
        lines += ["", "## More problems, torch-alm alone\n", *more_lines(found["more"])]
        lines += ["", more_table(found["more"])]
    return "\n".join(lines) + "\n"


def rows(found: Mapping[str, Any], names: Sequence[str]) -> list[list[str]]:
    """A row per question, a column per library."""
    cost, gate = found["cost"], found["gate"]
    each = [found[name] for name in names]
    of = each[0]["every 50"]["of"]
    gated = gate["torch-alm, gated"] / gate["retain only"]
    mean, stored, _ = found["filtered noise"]
    return [
        ["lines beside a plain loop", *(str(one["lines"]) for one in each)],
        [
            f"µs per step, one parameter ({cost['plain']:.0f} without a constraint, "
            f"{cost['by hand']:.0f} by hand)",
            *(f"{one['microseconds']:.0f}" for one in each),
        ],
        [
            "time with a constraint that never acts, against none at all",
            *(
                f"{one['gate']:.1f}×" + (f"; {gated:.1f}× gated" if name == "torch-alm" else "")
                for name, one in zip(names, each, strict=True)
            ),
        ],
        [
            f"solved to 1e-3 and to 1e-5, of {of}, dual step every 50 steps",
            *(solved(one["every 50"]) for one in each),
        ],
        ["the same, dual step every step", *(solved(one["every step"]) for one in each)],
        [
            "inactive under noise, dual step every step: mean λ, λ > 0",
            *(f"{one['noise'][0]:.1f}, {one['noise'][1]:.0%}" for one in each),
        ],
        [
            "the same with `every=50, filter=Mean(50, deadband=1)`",
            *(f"{mean:.3f}, {stored:.0%}" if name == "torch-alm" else "–" for name in names),
        ],
        ["goes on after one NaN measurement", *("yes" if one["nan"] else "no" for one in each)],
        [
            "goes on after a checkpoint as if never stopped (two constraints, dual momentum 0.9)",
            *(f"{one['resume']} of 8" for one in each),
        ],
    ]


def solved(found: Mapping[str, Any]) -> str:
    return f"{found['1e-3']}, {found['1e-5']}"


def filtered(found: Mapping[str, Any]) -> str:
    """The noise target as a sentence."""
    mean, stored, acting = found["filtered noise"]
    return (
        f"torch-alm with every=50, filter=Mean(50, deadband=1): mean multiplier {mean:.3f}, stored "
        f"above zero on {stored:.1%}, acting on {acting:.1%} of the steps."
    )


def more_lines(more: Mapping[str, Any]) -> list[str]:
    """Count the further problems that are solved, in a line per penalty."""
    runs = [name for name in next(iter(more.values())) if name != "scipy"]
    lines = []
    for name in runs:
        counts = [sum(max(one[name]) <= t for one in more.values()) for t in TOLERANCES]
        lines.append(
            f"- the penalty {name}: {counts[0]} of {len(more)} to 1e-3, {counts[1]} to 1e-5"
        )
    scipy = sum(one["scipy"] <= TOLERANCES[1] for one in more.values())
    return [*lines, f"- SciPy's SLSQP from the same starts: {scipy} of {len(more)} to 1e-5"]


def more_table(more: Mapping[str, Any]) -> str:
    """The larger of violation and gap, problem by problem."""
    head = ["problem", *next(iter(more.values()))]
    cells = [
        [name, *(f"{max(v) if isinstance(v, list) else v:.0e}" for v in one.values())]
        for name, one in more.items()
    ]
    return tables.markdown(head, cells)
