"""The tables of a report: numbers per set, and the way of each number under every attack."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from torch_alm.cli.measuring import MEMBERSHIP, ROWS, Shown

Content: TypeAlias = Mapping[str, Any]

SETS = {"forget": "Forget", "retain": "Retain", "holdout": "Never seen"}
# One model has room for more of them than two side by side
ATTACKED = {
    "rouge": "words",
    "exact_match": "word for word",
    "loss": "loss",
    "extraction_strength": "once begun",
}


def table(models: Sequence[Content]) -> dict[str, Any] | None:
    """Numbers per set, a column per model."""
    if not models:
        return None
    parts = [
        {
            "name": f"{title} ({models[-1]['numbers'][name]['rows']:.0f} rows)",
            "rows": [
                {
                    "name": how.told,
                    "cells": [cell(m["numbers"][name].get(key), how) for m in models],
                }
                for key, how in ROWS.items()
                if key in models[-1]["numbers"][name]
            ],
        }
        for name, title in SETS.items()
        if name in models[-1]["numbers"]
    ]
    auc = [cell(m["membership_auc"], MEMBERSHIP) for m in models]
    parts.append({"name": "Membership", "rows": [{"name": MEMBERSHIP.told, "cells": auc}]})
    return {"columns": [m["name"] for m in models], "parts": parts}


def cell(value: float | None, how: Shown) -> str:
    """A number as a table shows it."""
    if value is None:
        return "–"
    return f"{100 * value:.{how.digits}f} %" if how.percent else f"{value:.{how.digits}f}"


def attack_table(attacks: Sequence[Content], measures: Iterable[str]) -> dict[str, Any]:
    """Every attack, how many rows it asks, and what was there before and after it."""
    names = [each["name"] for each in attacks] if len(attacks) > 1 else [""]
    measures = [*measures]
    columns = [f"{ATTACKED[key]}, {name}".rstrip(", ") for key in measures for name in names]
    found = [{row["name"]: row for row in each["rows"]} for each in attacks]
    rows = [
        {
            "name": told(row),
            "asked": f"{row['before']['rows']:.0f}",
            "cells": [_way(f.get(row["name"]), key) for key in measures for f in found],
        }
        for row in attacks[0]["rows"]
    ]
    return {"columns": columns, "rows": rows}


def _way(row: Content | None, key: str) -> str:
    """From before to after."""
    sides = () if row is None else (row["before"], row["after"])
    return " → ".join(cell(side[key], ROWS[key]) for side in sides) or "–"


def told(row: Content) -> str:
    """An attack and the attacker's numbers in a few words."""
    given = row["attacker"]
    known = {"examples": "on {:.0f} rows", "share": "{:.0%} given"}
    words = [form.format(given[key]) for key, form in known.items() if key in given]
    return f"{row['name']} {' '.join(words)}".strip()
