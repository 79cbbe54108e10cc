"""Notebooks print what they show."""

import copy

import pytest

from docs import notebook


@pytest.mark.parametrize("path", notebook.paths(), ids=lambda path: path.stem)
def test_each_cell_prints_what_is_recorded(path: notebook.Path) -> None:
    found = notebook.read(path)
    recorded = copy.deepcopy(found)
    notebook.run(found)
    assert found == recorded
