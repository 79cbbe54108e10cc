"""Promises of `import torch_alm`: the version, the types, and nothing heavy."""

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import torch_alm

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


SOURCES = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if not {"command", "integrations", "unlearning"} & {*path.relative_to(PACKAGE).parts}
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_torch_is_the_only_dependency(source: Path) -> None:
    nodes = [*ast.walk(ast.parse(source.read_text()))]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    allowed = {"torch", "torch_alm"} | sys.stdlib_module_names
    allowed |= {"rouge_score"} if source.name == "_wording.py" else set()  # when it is called
    assert {name.partition(".")[0] for name in names} <= allowed


def test_version_is_the_installed_one_and_types_are_shipped() -> None:
    assert torch_alm.__version__ == version("torch-alm") and (PACKAGE / "py.typed").is_file()
