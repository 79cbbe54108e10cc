from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from tests.distributed.ranks import Ranks


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    pair = Ranks(tmp_path_factory.mktemp("groups"))
    yield pair
    pair.stop()


@pytest.fixture(scope="session")
def plain_run(ranks: Ranks) -> Callable[[str, int], list[Any]]:
    """Runs without special settings, each taken once."""
    from tests.distributed import task  # which needs FSDP2, and the other fixture does not

    return cache(lambda engine, micro: ranks(task.train, engine, micro))
