"""Four ranks equal one process: weights sharded over all, in a grid, and beside tensor parallel."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.distributed import task, test_checkpoint
from tests.core.distributed.ranks import Ranks
from tests.core.distributed.task import Outcome
from tests.core.distributed.test_engines import assert_is, assert_ranks_agree

ENGINES = ("fsdp", "hsdp", "tp-fsdp")


def everything(rank: int, folder: str) -> dict[str, Outcome]:
    """A run under each engine; half a run of the first is saved."""
    found = {engine: task.train(rank, engine) for engine in ENGINES}
    test_checkpoint.run(rank, "fsdp", (0, test_checkpoint.HALF), save=folder)
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("four") / "half"


@pytest.fixture(scope="module")
def found(
    forks: None, tmp_path_factory: pytest.TempPathFactory, saved: Path
) -> Iterator[list[dict]]:
    """The outcomes of each rank; one start of four processes serves all tests."""
    four = Ranks(tmp_path_factory.mktemp("groups"), world=4)
    yield four(everything, str(saved), timeout=60)
    four.stop()


@pytest.mark.parametrize("engine", ENGINES)
def test_four_ranks_are_one_process(found: list[dict[str, Outcome]], engine: str) -> None:
    outcomes = [each[engine] for each in found]
    assert len(outcomes) == 4
    for pair in itertools.pairwise(outcomes):
        assert_ranks_agree([*pair])
    assert_is(outcomes[0], task.by_hand(lambda step: [task.batch(step, 0)]))


def test_what_four_ranks_saved_two_go_on_with(
    found: list[dict[str, Outcome]], saved: Path, ranks: Ranks
) -> None:
    span, options = (test_checkpoint.HALF, task.STEPS), {"load": str(saved)}
    through = test_checkpoint.run(None, "alone", (0, task.STEPS))
    for resumed in ranks(test_checkpoint.call, "fsdp", span, options):
        test_checkpoint.assert_close(resumed, through)
