"""Promises of `import torch_alm`: the version, the types, and nothing heavy."""

import ast
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import torch_alm

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(torch_alm.__file__).parent


# `torch.utils.checkpoint`, which is used, loads sympy in torch 2.6; `import torch` does not.
LOADED = """
import sys, torch.utils.checkpoint
names = lambda: {name.partition(".")[0] for name in sys.modules}
before = names()
import torch_alm, torch_alm.measures
print(*names() - before)
"""


def test_import_loads_nothing_that_torch_does_not_load() -> None:
    words = [sys.executable, "-c", LOADED]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["torch_alm"]


def imported_by(source: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").partition(".")[0])
    return found


SOURCES = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if not {"command", "integrations", "unlearning"} & {*path.relative_to(PACKAGE).parts}
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_torch_is_the_only_dependency(source: Path) -> None:
    allowed = {"torch", "torch_alm"} | sys.stdlib_module_names
    allowed |= {"rouge_score"} if source.name == "_wording.py" else set()  # when it is called
    assert imported_by(source) <= allowed


def test_version_is_the_installed_one() -> None:
    assert torch_alm.__version__ == version("torch-alm")


def test_types_are_shipped() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_changelog_and_citation_are_about_this_version() -> None:
    (released,) = re.findall(r"^## \[?(\d[^] ]*)\]? - (\S+)$", read("CHANGELOG.md"), re.MULTILINE)
    cited = dict(
        re.findall(
            r"^(version|date-released): *[\"']?([^\"'\n]+)", read("CITATION.cff"), re.MULTILINE
        )
    )
    assert released == (cited["version"], cited["date-released"])
    assert cited["version"] == torch_alm.__version__


def read(name: str) -> str:
    return (ROOT / name).read_text()
