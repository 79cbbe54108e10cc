"""Code of the repository, quoted on the site as wide as a page.

In a page `::source FILE NAME` becomes the code of that function, and `::source FILE` that of the
whole file.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parent.parent
LINE = re.compile(r"^::source (\S+)(?: (\S+))?$", re.MULTILINE)


def shown(markdown: str) -> str:
    """Put the code where its lines stand."""
    return LINE.sub(lambda match: _block(*match.groups()), markdown)


def quoted(markdown: str) -> list[str]:
    """Read the code that a page asks for."""
    return [code(file, name or None) for file, name in LINE.findall(markdown)]


def code(file: str, name: str | None) -> str:
    """Read a function from a file, or what follows the file's own docstring, as a page has room."""
    options = ["--isolated", "--line-length=80", "--stdin-filename", file, "-"]
    command = [sys.executable, "-m", "ruff", "format", *options]
    text = _code((ROOT / file).read_text(), name)
    return subprocess.run(command, input=text, capture_output=True, check=True, text=True).stdout


def _code(text: str, name: str | None) -> str:
    node: ast.AST = ast.parse(text)
    lines = text.splitlines()
    if name is None:
        return "\n".join(lines[node.body[0].end_lineno :]).strip()
    for part in name.split("."):
        node = next(child for child in node.body if getattr(child, "name", "") == part)
    return dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))


def _block(file: str, name: str | None) -> str:
    return f'```python title="{file}"\n{code(file, name)}```'
