"""Skipping and probing: the same theta, states and lambda for fewer passes."""

from collections.abc import Callable

import pytest
import torch

from tests.distributed import task
from tests.distributed.ranks import Ranks


def assert_same(found: task.Outcome, expected: task.Outcome) -> None:
    task.assert_gate_opens_and_closes(found.weights)
    assert found.weights == expected.weights and found.multipliers == expected.multipliers
    assert all(torch.equal(a, b) for a, b in zip(found.theta, expected.theta, strict=True))


@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize("engine", ["ddp", "ddp-view", "fsdp"])
def test_a_skipped_backward_changes_nothing(
    ranks: Ranks, plain_run: Callable, engine: str, micro: int
) -> None:
    full = plain_run(engine, micro)
    skipped = ranks(task.train, engine, micro, {"last": True, "reshard": True})
    for rank in range(2):
        assert_same(skipped[rank], full[rank])
        closed = sum(w == 0 for w in full[rank].weights)
        assert full[rank].passes == 4 * micro * task.STEPS
        assert skipped[rank].passes == full[rank].passes - closed


def test_nothing_is_skipped_where_stale_weights_would_follow(
    ranks: Ranks, plain_run: Callable
) -> None:
    full, careful = plain_run("fsdp", 1), ranks(task.train, "fsdp", 1, {"last": True})
    assert careful[0].passes == full[0].passes
    assert_same(careful[0], full[0])


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
