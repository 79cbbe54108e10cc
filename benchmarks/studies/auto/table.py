"""The comparison as Markdown, from its rows alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.report.tables import included, markdown
from benchmarks.studies.auto.compare import DECADES
from benchmarks.studies.auto.suite import REPORT, SEARCH

Row = Mapping[str, Any]
Solved = Callable[[Row], bool]


def is_solved(pair: Sequence[float]) -> bool:
    """At most 1 % violated and 2 % short of the optimum; `None` is a number that was not finite."""
    return None not in pair and pair[0] <= 0.01 and pair[1] <= 0.02


def single(way: str, index: int = 0) -> Solved:
    return lambda row: way in row["ways"] and is_solved(row["ways"][way][index])


def best_single(rows: Sequence[Row]) -> int:
    """The decade that solves most of these rows."""
    return max(range(len(DECADES)), key=lambda k: sum(map(single("every 1", k), rows)))


def per_problem(rows: Sequence[Row]) -> Solved:
    """The decade that solves most cells, chosen for each problem and seed."""
    tuned: dict[tuple[str, int], Solved] = {}
    for key in {(row["problem"], row["seed"]) for row in rows}:
        own = [row for row in rows if (row["problem"], row["seed"]) == key]
        tuned[key] = single("every 1", best_single(own))
    return lambda row: tuned[row["problem"], row["seed"]](row)


def per_cell(row: Row) -> bool:
    """Some decade, chosen for this very cell."""
    return any(map(is_solved, row["ways"].get("every 1", [])))


def anyone(row: Row) -> bool:
    return any(is_solved(pair) for each in row["ways"].values() for pair in each)


def halves(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of either half of the problems."""
    names = {"search half": SEARCH, "report half": REPORT}
    known = {told: {kind().name for kind in half} for told, half in names.items()}
    return {told: [row for row in rows if row["problem"] in of] for told, of in known.items()}


def contestants(rows: Sequence[Row]) -> dict[str, Solved]:
    """The ways to count, by what the table calls them."""
    found: dict[str, Solved] = {"the rule, nothing tuned": single("auto")}
    if all("every 1" in row["ways"] for row in rows):
        k = best_single(rows)
        found[f"the best single mu, {DECADES[k]:g}"] = single("every 1", k)
        found["the best mu per problem"] = per_problem(rows)
        found["the best mu per cell (an oracle)"] = per_cell
    peers = [w for w in rows[0]["ways"] if w.startswith(("cooper", "human"))]
    peers = [w for w in peers if all(w in row["ways"] for row in rows)]
    kinds = {"cooper": "cooper, dual rate", "humancompatible": "humancompatible-train, penalty"}
    for peer in peers:
        name, setting = peer.split()
        found[f"{kinds[name]} {setting}"] = single(peer)
    if all("held" in row["ways"] for row in rows):
        found["the multiplier of the optimum, held (an oracle)"] = single("held")
    return found


def shares(rows: Sequence[Row]) -> str:
    """Solved cells: all of them, of either half, and of those that some way solves."""
    groups = {"all cells": list(rows), **halves(rows), "solved by any": list(filter(anyone, rows))}
    body = [
        [name, *(_count(solved, group) for group in groups.values())]
        for name, solved in contestants(rows).items()
    ]
    return markdown(["way", *groups], body)


def alone(rows: Sequence[Row]) -> str:
    """Count the cells that the rule solves."""
    groups = {"all": rows, **{f"the {told}": half for told, half in halves(rows).items()}}
    return "; ".join(f"{_count(single('auto'), own)} of {told}" for told, own in groups.items())


def _count(solved: Solved, rows: Sequence[Row]) -> str:
    hits = sum(map(solved, rows))
    return f"{hits} of {len(rows)}, {hits / len(rows):.1%}" if rows else "–"


def problems(rows: Sequence[Row]) -> str:
    """Cells solved, problem by problem."""
    ways = contestants(rows)
    names = list(dict.fromkeys(row["problem"] for row in rows))
    body = [
        [name, *(str(sum(map(solved, [r for r in rows if r["problem"] == name])))
                 for solved in ways.values())]
        for name in names
    ]  # fmt: skip
    return markdown(["problem", *ways], body)


def diverged(rows: Iterable[Row]) -> list[Row]:
    """The cells that the rule leaves worse than they began: not finite, or beyond the scales."""
    pairs = ((row, row["ways"]["auto"][0]) for row in rows if "auto" in row["ways"])
    return [row for row, pair in pairs if None in pair or not max(pair) <= 1]


def missed(rows: Iterable[Row]) -> str:
    """The rule's misses, and whether anybody solves the cell."""
    body = [
        [
            row["kind"], row["problem"], row["setting"],
            f"{row['unit_f']:g}, {row['unit_c']:g}", str(row["seed"]),
            *(_percent(share) for share in row["ways"]["auto"][0]),
            ("yes" if per_cell(row) else "no") if "every 1" in row["ways"] else "–",
        ]
        for row in rows
        if not single("auto")(row)
    ]  # fmt: skip
    head = ["run", "problem", "optimizer", "units", "seed", "violation", "suboptimality"]
    return markdown([*head, "some fixed mu solves it"], body)


def _percent(share: float | None) -> str:
    return "diverged" if share is None or not math.isfinite(share) else f"{share:.1%}"


TITLES = {
    "main": "Side by side, in each problem's own units, float64",
    "units": "In other units: the objective times 1e3 or 1e-3, the measure times 1e4 or 1e-4",
    "float32": "In float32",
    "seeds": "Minibatch problems with two more shuffles",
    "fresh": "Minibatch problems with batches of a stream, in which no row waits for the others",
}


def page(rows: Sequence[Row]) -> str:
    parts = [
        "# One rule for mu, against mu that is tuned",
        "Written by `python -m benchmarks.studies.auto`; numbers in `auto.json`. A cell, one"
        " problem with one optimizer for 2,000 steps, is solved if over the last tenth the"
        " violation is at most 1 % and the objective at most 2 % short of the optimum, both judged"
        " on all data. A fixed mu is Algorithm 1, one of the decades from 1e-10 to 1e3. Minibatches"
        " are those of epochs: shuffled, every row once.",
    ]
    for kind, title in TITLES.items():
        own = [row for row in rows if row["kind"] == kind and "auto" in row["ways"]]
        compared = [row for row in own if len(row["ways"]) > 1]
        if own:
            parts.append(f"## {title}")
        if compared:
            told = f"Cells in which all ways were run, {len(compared)} of {len(own)}."
            told += "" if len(compared) == len(own) else f" The rule alone: {alone(own)}."
            found = f"{told}\n\n{shares(compared)}"
            parts.append(included(found) if kind == "main" else found)
            if kind == "main":
                parts.append(problems(compared))
        elif own:
            parts.append(f"The rule alone: {alone(own)}.")
    parts += [
        "## Missed by the rule",
        f"Diverged, that is worse than it began: {len(diverged(rows)) or 'no cell'}.",
        missed(row for row in rows if "auto" in row["ways"]),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"
