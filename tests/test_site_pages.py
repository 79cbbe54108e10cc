"""Pages of the site: code fits their width, every status has a line, questions find an answer."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs import sources
from torch_alm._constraint.status import STATUSES

ROOT = Path(__file__).resolve().parent.parent
READMES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")]
PAGES = sorted([*READMES, *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^( *)```(?!math)(\w+).*?\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
COLUMNS = 80


def code(text: str) -> Iterator[str]:
    """Every line of code that a page shows, quoted from a file or written in it.

    But for the differences on `loops.md`, which are of code that others have published.
    """
    for _, kind, block in FENCE.findall(text):
        if kind != "diff" or "# In your loop" not in text:
            yield from block.splitlines()
    for quotation in sources.quoted(text):
        yield from quotation.splitlines()


def test_blocks_and_quotations_are_both_seen() -> None:
    text = "```python\na\n```\n\n::source tests/oracle.py grad_sam\n"
    assert "a" in list(code(text)) and len(list(code(text))) > 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_fits_the_page(page: Path) -> None:
    """But for a single name that is longer by itself."""
    wide = [line for line in code(page.read_text()) if len(line) > COLUMNS]
    assert [line for line in wide if " " in line.strip()] == []


@pytest.mark.parametrize("status", STATUSES)
def test_every_status_has_a_line_that_says_what_to_do(status: str) -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    (line,) = re.findall(rf"^\| `{status}` \| .+ \| (.+) \|$", text, re.MULTILINE)
    assert len(line) > 5
