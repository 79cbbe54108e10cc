"""One figure of all attacks: what each model says before and after them, as inline SVG."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

WIDTH, LEFT, RIGHT, TOP, ROW, LINE = 480, 26, 34, 8, 30, 14


class Dot(NamedTuple):
    """The way of one model under one attack: from where to where, and at which height."""

    start: float
    end: float
    y: float
    kind: str


class Group(NamedTuple):
    """One attack: its name, where that stands, and a line for each model."""

    name: str
    y: float
    dots: list[Dot]


class Figure(NamedTuple):
    """Everything that the page draws."""

    height: float
    groups: list[Group]
    ticks: list[tuple[float, str]]
    models: list[tuple[str, str]]
    width: int = WIDTH


def figure(attacks: Sequence[Mapping[str, Any]]) -> Figure:
    """Shares of words before and after, an attack below the other, models beside one another."""
    kinds = [(each["name"], kind) for each, kind in zip(attacks, ("own", "other"), strict=False)]
    rows = [{row["name"]: row for row in each["rows"]} for each in attacks]
    groups: list[Group] = []
    y = float(TOP)
    for name in rows[0]:
        dots = [
            Dot(_x(found[name]["before"]["rouge"]), _x(found[name]["after"]["rouge"]), 0.0, kind)
            for found, (_, kind) in zip(rows, kinds, strict=True)
            if name in found
        ]
        placed = [dot._replace(y=y + ROW + i * LINE) for i, dot in enumerate(dots)]
        groups.append(Group(name, y + LINE, placed))
        y += ROW + len(dots) * LINE
    ticks = [(_x(share / 4), f"{25 * share} %") for share in range(5)]
    return Figure(y + 26, groups, ticks, kinds)


def _x(share: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * share
