"""Links from the sources that docstrings name to the papers of the bibliography."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

BIBLIOGRAPHY = Path(__file__).resolve().parent / "bibliography.md"
ROW = re.compile(r"^\| ([^|\[]*?\d{4}), \[[^]]*\]\(([^)]+)\) \| (.+) \|$", re.MULTILINE)
SOURCE = re.compile(r"^Source: .*(?:\n\S.*)*", re.MULTILINE)


@cache
def rows() -> list[tuple[str, str, str]]:
    """Authors and year, address, and what the paper is used for."""
    return ROW.findall(BIBLIOGRAPHY.read_text(encoding="utf-8"))


def linked(docstring: str, name: str) -> str:
    """Link the papers in the *Source:* of a docstring.

    Args:
        docstring: The text.
        name: Whose it is. Of several papers of the same authors and year, the one used for it.
    """
    return SOURCE.sub(lambda found: _linked(found.group(), name), docstring)


def _linked(source: str, name: str) -> str:
    for authors in dict.fromkeys(row[0] for row in rows()):
        found = [(url, use) for who, url, use in rows() if who == authors]
        urls = [url for url, use in found if len(found) == 1 or f"`{name}`" in use]
        if urls:
            source = source.replace(authors, f"[{authors}]({urls[0]})")
    return source
