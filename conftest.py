"""For every test and docstring example: a fixed seed, and `torch` at hand."""

import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

# Docstrings are looked for in every module, and this one imports what no extra installs.
collect_ignore = [] if find_spec("lightning") else ["torch_alm/integrations/lightning.py"]

# About half of what the tests import, and nothing of it begins with torch.
WITHOUT_TORCH = ("sympy", "scipy.stats", "nltk", "matplotlib.pyplot", "datasets", "openai")


def pytest_sessionstart() -> None:
    """Begin elsewhere than the first worker does.

    All workers import the same. Where it is compiled for the first time, as in a new environment,
    each of two would compile all of it, a module at the same time as the other.
    """
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0":
        for name in WITHOUT_TORCH:
            with suppress(ImportError):
                import_module(name)


@pytest.fixture(scope="session")
def seeder() -> Callable[[int], object]:
    """Import torch and tell what seeds it; what hands out the tests to workers needs neither."""
    import torch

    # `torch.manual_seed` formats the stack for devices that may come later: longer than a small
    # test.
    return torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed


@pytest.fixture(autouse=True)
def seeded(seeder: Callable[[int], object], doctest_namespace: dict[str, Any]) -> None:
    """Seed torch; docstring examples may use it without importing it."""
    seeder(0)
    doctest_namespace["torch"] = sys.modules["torch"]


def pytest_collection_finish() -> None:
    """Leave what was imported out of later collections: a Trainer asks for one in each training.

    Modules stay until the end anyway; to look through millions of their objects takes longer than
    a small training.
    """
    gc.collect()
    gc.freeze()
