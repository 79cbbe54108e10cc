"""The page of the study, written from its lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.report.tables import markdown
from benchmarks.studies.accelerator.checks import Line
from benchmarks.studies.accelerator.sections import SECTIONS

STATUSES = ("ok", "failed", "not run")
HEAD = (
    "# On an accelerator\n\nWritten by `python -m benchmarks.studies.accelerator`; numbers and "
    "tracebacks in `accelerator.json`."
)


def page(content: Mapping[str, Any]) -> str:
    """All sections that were run, in their order; failures are told first."""
    found = {name: content[name] for name in SECTIONS if name in content}
    every = [line for section in found.values() for line in section["lines"]]
    failed = [
        f"- {name}: {said(line)}"
        for name, section in found.items()
        for line in section["lines"]
        if line["status"] == "failed"
    ]
    parts = [HEAD, "\n" + summary(every), *(["", *failed] if failed else [])]
    for name, section in found.items():
        where = ", ".join(f"{k} {v}" for k, v in section["machine"].items() if v is not None)
        parts += [f"\n## {SECTIONS[name]}\n", f"`{name}`: {where}\n", table(section["lines"])]
    left = [name for name in SECTIONS if name not in found]
    parts += [f"\nNot run: {', '.join(left)}."] if left else []
    return "\n".join(parts) + "\n"


def summary(lines: list[Line]) -> str:
    counts = [sum(line["status"] == status for line in lines) for status in STATUSES]
    return ", ".join(f"{n} {status}" for n, status in zip(counts, STATUSES, strict=True)) + "."


def said(line: Line) -> str:
    return f"**{escaped(line['name'])}**: {escaped(line['why'])}"


def table(lines: list[Line]) -> str:
    rows = [
        (
            escaped(line["name"]),
            line["status"].upper() if line["status"] == "failed" else line["status"],
            escaped(told(line)),
            f"{line['seconds']:.1f}",
        )
        for line in lines
    ]
    return markdown(("what", "outcome", "seen", "seconds"), rows, others="---")


def told(line: Line) -> str:
    """Say what was seen, or why nothing was."""
    return numbers(line["seen"]) if line["status"] == "ok" else line["why"]


def numbers(seen: Mapping[str, Any]) -> str:
    """Names and numbers, to four digits."""
    shown = {k: f"{v:.4g}" if isinstance(v, float) else str(v) for k, v in seen.items()}
    return ", ".join(f"{k} {v}" for k, v in shown.items() if v != "None")


def escaped(text: str) -> str:
    """Without what would end a cell."""
    return text.replace("|", "\\|")
