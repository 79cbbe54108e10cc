"""Every Python block of README, CONTRIBUTING and docs is run, as a reader would run it.

The folder is empty, and of the checkout nothing can be imported but the installed package. A block
that begins with an import stands alone; one that does not goes on from the block before it. Each
prints exactly the lines that it shows as `#> ...` comments. Notebooks print what they show.
"""

import copy
import functools
import io
import re
import sys
import textwrap
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import torch_alm
from docs import notebook

ROOT = Path(__file__).resolve().parent.parent
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```python[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
NO_EXTRAS = "lightning|trl"
IN_THE_CHECKOUT = ("benchmarks", "conftest", "docs", "tests")


def blocks(path: Path) -> Iterator[str]:
    """The blocks of a page, each below as many empty lines as there are lines before it."""
    text = path.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        if "--8<--" not in found[2]:
            yield "\n" * text.count("\n", 0, found.start(2)) + textwrap.dedent(found[2])


PAGES = [path for path in TEXTS if any(blocks(path))]


@pytest.fixture(autouse=True)
def reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Stand in an empty folder, with the package installed and no checkout at hand."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] in IN_THE_CHECKOUT]:
        monkeypatch.delitem(sys.modules, name)
    checkouts = [p for p in sys.path if not p or (Path(p) / "pyproject.toml").exists()]
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in checkouts])


def test_of_the_checkout_only_the_package_is_there() -> None:
    assert torch_alm.__version__
    assert not [name for name in IN_THE_CHECKOUT if find_spec(name)]
    assert list(blocks(ROOT / "docs" / "quickstart.md"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_blocks_run_and_print_what_they_say(path: Path) -> None:
    names: dict[str, object] = {}
    missing: list[str] = []
    for block in blocks(path):
        foreign = re.findall(rf"^(?:import|from) ({NO_EXTRAS})\b", block, re.MULTILINE)
        missing += [name for name in foreign if not find_spec(name)]
        if not all(map(find_spec, foreign)):
            continue
        if re.match(r"\n*(from|import) ", block):
            torch.manual_seed(0)
            names = {"__name__": "__main__"}
        with warnings.catch_warnings():
            if foreign:
                warnings.simplefilter("ignore")  # theirs: of workers, loggers and changes to come
            found = printed(block, path, names)
        assert found == re.findall(r"^ *#> ?(.*)$", block, re.MULTILINE)
    if missing:
        pytest.skip(f"one block needs {missing}, which no extra installs")


def printed(block: str, path: Path, names: dict[str, object]) -> list[str]:
    """Run a block; return what it prints itself."""
    told = io.StringIO()
    names["print"] = functools.partial(print, file=told)
    exec(compile(block, str(path), "exec"), names)
    return told.getvalue().splitlines()


@pytest.mark.parametrize("path", notebook.paths(), ids=lambda path: path.stem)
def test_each_cell_of_a_notebook_prints_what_is_recorded(path: Path) -> None:
    found = notebook.read(path)
    recorded = copy.deepcopy(found)
    notebook.run(found)
    for cell, before in zip(found["cells"], recorded["cells"], strict=True):
        assert cell == before, "".join(cell["source"])
