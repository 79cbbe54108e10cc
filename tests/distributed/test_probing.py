"""Probing: a measurement left out on one rank is left out on all, as in one process."""

import pytest
import torch

from tests.distributed import task
from tests.distributed.ranks import Ranks
from tests.test_looks import LOOKED, MEASURED, World


@pytest.mark.parametrize("every", [3, "auto"])
@pytest.mark.parametrize("engine", ["ddp-view", "fsdp"])
def test_probing_is_what_it_is_in_one_process(ranks: Ranks, engine: str, every: int | str) -> None:
    thresholds = task.MET_EARLY if every == "auto" else task.LONGER
    settings = {"probe_every": every, "last": True, "thresholds": thresholds}
    alone = task.train(None, "alone", 1, settings)
    outcomes = ranks(task.train, engine, 1, {**settings, "reshard": True})
    assert {weight > 0 for weight in alone.weights} == {True, False}
    if every == 3:
        task.assert_gate_opens_and_closes(alone.weights)
    assert alone.passes < 4 * len(thresholds) - sum(w == 0 for w in alone.weights)
    for outcome in outcomes:
        assert outcome.passes == alone.passes
        torch.testing.assert_close(outcome.weights, alone.weights, rtol=0, atol=1e-12)
        torch.testing.assert_close(outcome.theta, alone.theta, rtol=0, atol=1e-12)


def look(rank: int) -> list[tuple[int, ...]]:
    """The passes of two steps; in the second, one rank by itself would have to measure."""
    world = World()
    return [world.step(value)[:2] for value in ((3.0, 3.0)[rank], (3.0, 0.2)[rank])]


def test_ranks_agree_whether_a_look_is_enough(ranks: Ranks) -> None:
    assert ranks(look) == [[MEASURED, LOOKED]] * 2
