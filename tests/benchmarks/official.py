"""Other people's code, run from a checkout of theirs that an environment variable names."""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest


def folder(variable: str) -> Path:
    """The checkout, or a skipped test where there is none."""
    path = Path(os.environ.get(variable, ""))
    if not os.environ.get(variable) or not path.is_dir():
        pytest.skip(f"{variable} names no checkout to compare with")
    return path


def load(monkeypatch: pytest.MonkeyPatch, source: Path, *modules: str) -> list[ModuleType]:
    """Modules of a source tree, without running what their packages import for everything else."""
    for name in modules:
        parents = name.split(".")[:-1]
        for depth in range(1, len(parents) + 1):
            hollow(monkeypatch, source, ".".join(parents[:depth]))
    try:
        return [importlib.import_module(name) for name in modules]
    except ModuleNotFoundError as error:
        pytest.skip(f"{source} needs {error.name}")


def hollow(monkeypatch: pytest.MonkeyPatch, source: Path, name: str) -> ModuleType:
    """A package that has its modules and nothing else; the test's end takes it away."""
    path = [str(source.joinpath(*name.split(".")))]
    known = sys.modules.get(name)
    if known is None or list(getattr(known, "__path__", [])) != path:
        known = ModuleType(name)
        known.__path__ = path
        monkeypatch.setitem(sys.modules, name, known)
    return known
