"""A table of example answers: what each method says to the same questions, right or wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

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
        subset: Of the questions.
        count: How many questions.
    """
    rows = {
        m: {r["index"]: r for r in found if r["subset"] == subset} for m, found in answers.items()
    }
    shared = set.intersection(*(set(found) for found in rows.values())) if rows else set()

    def interest(index: int) -> tuple[bool, int, int]:
        known = "original" not in rows or is_right(rows["original"][index])
        different = {found[index]["generation"] for found in rows.values()}
        return not known, -len(different), index

    return "\n\n".join(_example(rows, i, subset) for i in sorted(shared, key=interest)[:count])


def _example(rows: Mapping[str, Mapping[int, Row]], index: int, subset: str) -> str:
    asked = next(iter(rows.values()))[index]
    said = [
        {
            "Method": name_of(method),
            "": RIGHT if is_right(found[index]) else WRONG,
            "Answer": _inline(found[index]["generation"]),
        }
        for method, found in rows.items()
    ]
    head = f"**{subset.replace('_', ' ').capitalize()}:** {_inline(asked['question'])}  \n"
    truth = f"Truth: {_inline(asked['reference'])}\n\n"
    return head + truth + pd.DataFrame(said).to_markdown(index=False, disable_numparse=True)


def _inline(text: str | None, longest: int = 200) -> str:
    """One line that Markdown shows as it is; long degenerate answers are cut."""
    shown = " ".join((text or "(nothing)").split())
    for mark in "\\|*_`<[":
        shown = shown.replace(mark, "\\" + mark)
    return shown if len(shown) <= longest else shown[:longest].rstrip("\\") + " …"
