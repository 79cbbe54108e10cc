"""Measure the sentences of README, CONTRIBUTING, CHANGELOG, docs/ and benchmarks/README.

    python docs/check_prose.py [FILE ...]

A page passes if half of its sentences have at most 16 words and none has more than 35, no cell of
a table has more than 12, and no word stands there that only its author knows. Code between
backticks counts as one word. Pages below `docs/api` may have longer cells.
"""

import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MEDIAN, LONGEST, CELL = 16, 35, 12
OURS = re.compile(r"embedded world|aimed step|\blooks of\b|undo log", re.IGNORECASE)

NO_PROSE = re.compile(
    r"^( *)```.*?^\1```|^---\n.*?^---$|<!--.*?-->|<[^>]+>", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"!\[[^]]*\]\S*|\[([^]]*)\](?:\([^)]*\)|\[[^]]*\]|\{[^}]*\})")
BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.) )|^#.*$|^(?:::|--8<--|!!!).*$", re.MULTILINE)
END = re.compile(r"(?<=[.!?])[)*_\"”]*\s+(?=[A-Zα-ω`*(\"“])")


def pages() -> list[Path]:
    """List every page."""
    names = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")
    return [*(ROOT / name for name in names), *sorted((ROOT / "docs").rglob("*.md"))]


def words(text: str) -> int:
    """Count the words: what has a letter or a digit in it."""
    return len(re.findall(r"\S*\w\S*", text))


def parts(text: str) -> tuple[list[str], list[str]]:
    """Split a page into its sentences and the cells of its tables."""
    text = LINK.sub(r"\1", re.sub(r"`+[^`]+`+", "`x`", NO_PROSE.sub("", text)))
    rows = re.findall(r"^\s*\|(.*)\|\s*$", text, re.MULTILINE)
    cells = [cell.strip() for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    blocks = BLOCK.split(re.sub(r"^\s*\|.*$", "\n", text, flags=re.MULTILINE))
    found = [" ".join(s.split()) for block in blocks for s in END.split(block)]
    return [s for s in found if words(s)], cells


def faults(text: str, *, long_cells: bool) -> list[str]:
    """Say what is wrong with a page, a line each."""
    sentences, cells = parts(text)
    found = [f"{words(s)} words: {s}" for s in sentences if words(s) > LONGEST]
    median = statistics.median(map(words, sentences)) if sentences else 0
    if median > MEDIAN:
        found.append(f"the median of its sentences is {median:g} words, above {MEDIAN}")
    if not long_cells:
        found += [f"{words(c)} words in a cell: {c}" for c in cells if words(c) > CELL]
    return found + [f"our own word: {word}" for word in OURS.findall(text)]


def main(given: list[str]) -> int:
    """Print the faults of the pages given, or of all."""
    wrong = 0
    for page in [Path(name).resolve() for name in given] or pages():
        name = page.relative_to(ROOT).as_posix()
        found = faults(page.read_text(), long_cells="docs/api/" in name)
        wrong += len(found)
        for fault in found:
            print(f"{name}: {fault}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
