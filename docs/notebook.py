"""Notebooks of the site: run without Jupyter, recorded with what they print, made into pages.

    python -m docs.notebook

runs every notebook and records what its cells print. Nothing else is shown, as in a terminal.
"""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "notebooks"


def paths() -> list[Path]:
    """List the notebooks."""
    return sorted(FOLDER.glob("*.ipynb"))


def read(path: Path) -> dict[str, Any]:
    """Read a notebook as it is written."""
    return json.loads(path.read_text(encoding="utf-8"))


def run(notebook: dict[str, Any]) -> None:
    """Run its code cells one after the other, with the same names; keep what each prints."""
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec("".join(cell["source"]), names)
            lines = printed.getvalue().splitlines(keepends=True)
            stream = {"name": "stdout", "output_type": "stream", "text": lines}
            cell["outputs"] = [stream] if lines else []


def page(path: Path) -> str:
    """Write a notebook as Markdown, with a link to itself."""
    parts = [text for cell in read(path)["cells"] for text in blocks(cell)]
    parts.insert(1, f"[Download this notebook]({path.name})")
    return "\n\n".join(parts) + "\n"


def blocks(cell: dict[str, Any]) -> list[str]:
    """The words of a cell, or its code and what it printed."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    printed = ["".join(output["text"]).rstrip() for output in cell["outputs"]]
    return [f"```python\n{source}\n```", *(f"```text\n{text}\n```" for text in printed)]


if __name__ == "__main__":
    for each in paths():
        run(found := read(each))
        each.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
