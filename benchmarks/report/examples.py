"""A table of example answers: what each method says to the same questions, right or wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.report.results import Row
from benchmarks.report.tables import name_of

RIGHT, WRONG = "✓", "✗"
Answers = Mapping[str, Sequence[Row]]


def is_right(answer: Row) -> bool:
    """Take the benchmark's verdict, else every word of the reference in order: ROUGE-L recall 1."""
    if "right" in answer:
        return answer["right"]
    return answer["rouge"] is not None and answer["rouge"] >= 1.0


def examples(answers: Answers, subset: str, count: int = 2) -> str:
    """Markdown: the questions of a subset that the original model knows and methods differ on most.

    Args:
        answers: Rows per question of each method, the original model among them.
        subset: `forget`, `retain`, `real_authors` or `world_facts`.
        count: How many questions.
    """
    rows = {
        m: {r["index"]: r for r in found if r["subset"] == subset} for m, found in answers.items()
    }
    shared = set.intersection(*(set(found) for found in rows.values())) if rows else set()
    chosen = sorted(shared, key=lambda i: _interest(rows, i))[:count]
    return "\n".join(_example(rows, index, subset) for index in chosen)


def _interest(rows: Mapping[str, Mapping[int, Row]], index: int) -> tuple[bool, int, int]:
    """Smaller is more telling: known to the original, then many different answers."""
    known = is_right(rows["original"][index]) if "original" in rows else True
    different = {found[index]["generation"] for found in rows.values()}
    return (not known, -len(different), index)


def _example(rows: Mapping[str, Mapping[int, Row]], index: int, subset: str) -> str:
    first = next(iter(rows.values()))[index]
    lines = [
        f"**{subset.replace('_', ' ').capitalize()}:** {_inline(first['question'])}  ",
        f"Truth: {_inline(first['reference'])}",
        "",
        "| Method | | Answer |",
        "| --- | --- | --- |",
    ]
    for method, found in rows.items():
        mark = RIGHT if is_right(found[index]) else WRONG
        lines.append(f"| {name_of(method)} | {mark} | {_inline(found[index]['generation'])} |")
    return "\n".join([*lines, ""])


def _inline(text: str | None, longest: int = 200) -> str:
    """One line that Markdown shows as it is; long degenerate answers are cut."""
    shown = " ".join((text or "(nothing)").split())
    for mark in "\\|*_`<[":
        shown = shown.replace(mark, "\\" + mark)
    return shown if len(shown) <= longest else shown[:longest].rstrip("\\") + " …"
