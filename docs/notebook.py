"""Notebooks of the site: run without Jupyter, compared with what they show, made into pages.

    python -m docs.notebook

runs every notebook and writes what its cells print. In a notebook, as in a terminal, nothing but
what is printed is shown.
"""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "notebooks"
Cell = dict[str, Any]


def paths() -> list[Path]:
    """The notebooks, sorted."""
    return sorted(FOLDER.glob("*.ipynb"))


def cells(path: Path) -> list[Cell]:
    """The cells of a notebook, in their order."""
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def shown(cell: Cell) -> str:
    """The recorded output of a cell."""
    return "".join(text for output in cell.get("outputs", []) for text in output["text"])


def printed(path: Path) -> list[str]:
    """Run the code cells one after the other, with the same names; return what each prints."""
    names: dict[str, Any] = {}
    return [_run(cell, names) for cell in cells(path) if cell["cell_type"] == "code"]


def _run(cell: Cell, names: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as found:
        exec("".join(cell["source"]), names)
    return found.getvalue()


def page(path: Path) -> str:
    """The notebook as Markdown, with a link to itself."""
    parts = [_as_text(cell) for cell in cells(path)]
    parts.insert(1, f"[Download this notebook]({path.name}), which is run by the tests.")
    return "\n\n".join(parts) + "\n"


def _as_text(cell: Cell) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    output = shown(cell)
    block = f"```python\n{source}\n```"
    return f"{block}\n\n```text\n{output.rstrip()}\n```" if output else block


def record(path: Path) -> None:
    """Run a notebook and write what its cells print."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell, text in zip(code, printed(path), strict=True):
        lines = text.splitlines(keepends=True)
        stream = {"name": "stdout", "output_type": "stream", "text": lines}
        cell["outputs"] = [stream] if text else []
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for each in paths():
        record(each)
