"""For every test and docstring example: a fixed seed, and `torch` at hand."""

import gc
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def seeded(doctest_namespace: dict[str, Any]) -> None:
    """Seed torch; docstring examples may use it without importing it."""
    import torch  # what hands out the tests to workers does without

    torch.manual_seed(0)
    doctest_namespace["torch"] = torch


def pytest_collection_finish() -> None:
    """Leave what was imported out of later collections: a Trainer asks for one in each training.

    Modules stay until the end anyway; to look through millions of their objects takes longer than
    a small training.
    """
    gc.collect()
    gc.freeze()
