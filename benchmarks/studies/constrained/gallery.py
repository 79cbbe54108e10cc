"""The examples by name, each trained once."""

from __future__ import annotations

from functools import cache

from benchmarks.studies.constrained import (
    budget,
    equality,
    fairness,
    policy,
    recall,
    several,
    sparsity,
)
from benchmarks.studies.constrained.trace import Trace

EXAMPLES = {
    "fairness": fairness.train,
    "recall": recall.train,
    "budget": budget.train,
    "sparsity": sparsity.train,
    "policy": policy.train,
    "several": several.train,
    "equality": equality.train,
}


@cache
def trained(name: str) -> Trace:
    return EXAMPLES[name]()


def ended(name: str) -> list[dict[str, float | str]]:
    """One row per constraint: what was asked for, and how the run ended."""
    trace = trained(name)
    return [
        {
            "example": name,
            "constraint": f"{which} {constraint.sense} {constraint.alpha:g}",
            "measured": trace.measured[which][-1],
            "multiplier": trace.multiplier[which][-1],
            "objective": trace.objective[-1],
        }
        for which, constraint in trace.constraints.items()
    ]


def table() -> str:
    head = "| Example | Asked for | Got | Multiplier | Objective |"
    rows = [
        f"| {row['example']} | {row['constraint']} | {row['measured']:.5g} "
        f"| {row['multiplier']:.3g} | {row['objective']:.4g} |"
        for name in EXAMPLES
        for row in ended(name)
    ]
    return "\n".join([head, "|---|---|---|---|---|", *rows]) + "\n"
