"""For every test and docstring example: a fixed seed, and `torch` at hand."""

from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded(doctest_namespace: dict[str, Any]) -> None:
    """Seed torch; docstring examples may use it without importing it."""
    torch.manual_seed(0)
    doctest_namespace["torch"] = torch
