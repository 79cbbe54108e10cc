"""For all tests: processes that wait for work, and models that are trained once."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.core.distributed.ranks import Ranks


def pytest_collection_finish() -> None:
    """Leave out all that was imported where a Trainer looks for garbage, as it does each time."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Hear Ctrl-C, which tests send: what a shell starts in the background ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of trained models that all files use, and all workers of a run."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "models"


@pytest.fixture(scope="session")
def forks() -> None:
    """Processes of the forkserver are forked after the imports, which take longer than a test."""
    from tests.core.distributed.ranks import preload

    preload()


@pytest.fixture(scope="session")
def ranks(forks: None, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Ranks]":
    """Two processes for all tests of a worker."""
    from tests.core.distributed.ranks import Ranks

    pair = Ranks(tmp_path_factory.mktemp("groups"))
    yield pair
    pair.stop()
