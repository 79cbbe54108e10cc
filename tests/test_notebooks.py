"""Notebooks print what they show, in lines that fit a page."""

import json
from pathlib import Path

import pytest

from docs import notebook

PATHS = notebook.paths()


def code(path: Path) -> list[notebook.Cell]:
    return [cell for cell in notebook.cells(path) if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_each_cell_prints_what_is_recorded(path: Path) -> None:
    assert notebook.printed(path) == [notebook.shown(cell) for cell in code(path)]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_file_is_one_that_jupyter_opens(path: Path) -> None:
    found = json.loads(path.read_text())
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in found["cells"]}) == len(found["cells"])
    assert max(len(line) for cell in code(path) for line in cell["source"]) <= 81


def test_a_page_shows_words_code_and_output(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "words"]},
        {"cell_type": "code", "source": ["print(1 + 1)"], "outputs": []},
        {"cell_type": "code", "source": ["two = 2"], "outputs": []},
    ]
    path = tmp_path / "sums.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    notebook.record(path)
    text = notebook.page(path)
    assert text.startswith("# Title\nwords\n\n[Download this notebook](sums.ipynb)")
    assert "```python\nprint(1 + 1)\n```\n\n```text\n2\n```\n\n```python\ntwo = 2\n```\n" in text
