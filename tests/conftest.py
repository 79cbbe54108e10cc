"""For all tests: models that several files look at are trained once."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of trained models that all files use, and all workers of a run."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "models"
