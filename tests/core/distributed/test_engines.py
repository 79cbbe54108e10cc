"""Two and four ranks equal Algorithm 1 in one process, and each other bit for bit."""

import itertools
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import AdamW

from tests.core.distributed import task, test_checkpoint
from tests.core.distributed.ranks import Ranks
from tests.core.distributed.task import Outcome, batch, rows_of
from torch_alm.thresholds import radius_for, rate_for


def assert_ranks_agree(outcomes: list[Outcome]) -> None:
    first, second = outcomes
    assert first.weights == second.weights and first.multipliers == second.multipliers
    assert all(torch.equal(a, b) for a, b in zip(first.theta, second.theta, strict=True))


def assert_is(found: Outcome, expected: Outcome, atol: float = 1e-12) -> None:
    task.assert_gate_opens_and_closes(found.weights)
    assert [w > 0 for w in found.weights] == [w > 0 for w in expected.weights]
    torch.testing.assert_close(found.weights, expected.weights, rtol=0, atol=atol)
    torch.testing.assert_close(found.multipliers, expected.multipliers, rtol=0, atol=atol)
    torch.testing.assert_close(found.theta, expected.theta, rtol=0, atol=atol)


@pytest.fixture(scope="module")
def plain_run(ranks: Ranks) -> Callable[[str, int], list[Outcome]]:
    """Runs without special settings, each taken once."""
    return cache(lambda engine, micro: ranks(task.train, engine, micro))


RUNS = [("ddp", 1), ("ddp", 2), ("ddp-view", 2), ("fsdp", 1), ("fsdp", 2), ("fsdp-offload", 2)]
SKIPPING = [("ddp", 2), ("ddp-view", 2), ("fsdp", 1), ("fsdp", 2)]


@pytest.mark.parametrize(("engine", "micro"), RUNS)
def test_two_ranks_are_algorithm_1(plain_run: Callable, engine: str, micro: int) -> None:
    outcomes = plain_run(engine, micro)
    assert_ranks_agree(outcomes)
    assert_is(outcomes[0], task.by_hand(lambda step: [batch(step, k) for k in range(micro)]))


@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize("engine", ["ddp-view", "fsdp"])
def test_a_direction_outlives_the_buckets_that_it_was_found_in(
    ranks: Ranks, engine: str, micro: int
) -> None:
    """An engine writes the gradient of the next pass into the memory of the last."""
    settings = {"sam": {"every": 3}}
    outcomes = ranks(task.train, engine, micro, settings)
    assert_ranks_agree(outcomes)
    assert_is(outcomes[0], task.train(None, "alone", micro, settings))


def in_single_precision(net: nn.Module) -> Callable[[Tensor], Tensor]:
    """The model computed in float32 with weights, gradients and everything else in float64."""

    def forward(x: Tensor) -> Tensor:
        weights = {name: p.float() for name, p in net.named_parameters()}
        return functional_call(net, weights, x.float())

    return forward


def test_mixed_precision_is_algorithm_1_computed_in_it(ranks: Ranks) -> None:
    outcomes = ranks(task.train, "fsdp-mixed", 2)
    assert_ranks_agree(outcomes)
    parts = lambda step: [batch(step, k) for k in (0, 1)]  # noqa: E731
    assert_is(outcomes[0], task.by_hand(parts, in_single_precision), atol=2e-5)
    exact = task.by_hand(parts)
    assert not torch.allclose(outcomes[0].theta[0], exact.theta[0], rtol=0, atol=1e-12)


def test_tensor_parallel_is_algorithm_1(ranks: Ranks) -> None:
    outcomes = ranks(task.train, "tp")
    assert_ranks_agree(outcomes)
    assert_is(outcomes[0], task.by_hand(lambda step: [batch(step, 0)]))


@pytest.mark.parametrize("engine", ["ddp", "ddp-view"])
def test_without_sync_each_rank_perturbs_along_its_own_gradient(ranks: Ranks, engine: str) -> None:
    outcomes = ranks(task.train, engine, 2, {"unsynced": 1})
    assert_ranks_agree(outcomes)

    def parts(step: int) -> list[task.Batch]:  # the second micro-batch weighs as much as both
        return [*(batch(step, 0, rows_of(rank)) for rank in (0, 1)), *[batch(step, 1)] * 2]

    assert_is(outcomes[0], task.by_hand(parts))


def test_a_perturbation_per_rank_is_an_option(ranks: Ranks) -> None:
    outcomes = ranks(task.train, "ddp", 1, {"per_rank": True})
    assert_ranks_agree(outcomes)
    assert_is(outcomes[0], task.by_hand(lambda step: [batch(step, 0, rows_of(r)) for r in (0, 1)]))


def unsynced_under_fsdp(rank: int) -> list[str]:
    net = task.wrapped("fsdp")
    net.set_requires_gradient_sync(False)
    retain, forget = task.losses(net, batch(0, 0, rows_of(rank)))
    params = list(net.parameters())
    sam = task.dual(params)
    plain = task.DualOptimizer(task.AdamW(params), task.AdamW(params))
    said = []
    for optimizer in (sam, plain):
        with pytest.raises(RuntimeError) as caught:
            optimizer.backward(retain=retain, forget=forget)
        said.append(str(caught.value))
    return said


def test_fsdp_without_sync_is_refused_by_the_name_of_the_setting(ranks: Ranks) -> None:
    for said in itertools.chain(*ranks(unsynced_under_fsdp)):
        assert "set_requires_gradient_sync(True)" in said and "sync_each_batch=True" in said


def assert_same(found: task.Outcome, expected: task.Outcome) -> None:
    task.assert_gate_opens_and_closes(found.weights)
    assert found.weights == expected.weights and found.multipliers == expected.multipliers
    assert all(torch.equal(a, b) for a, b in zip(found.theta, expected.theta, strict=True))


@pytest.mark.parametrize(("engine", "micro"), SKIPPING)
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


def rate_and_radius(rank: int | None) -> tuple[float, float]:
    net = task.wrapped("alone" if rank is None else "ddp")
    rows = slice(None) if rank is None else task.rows_of(rank)
    _, loss = task.losses(net, task.batch(0, 0, rows))
    params = list(net.parameters())
    rate = rate_for(AdamW(params, lr=3.0), loss, change=0.1)
    return rate, radius_for(params, loss, change=0.2).value


def test_ranks_find_the_rate_and_the_radius_of_one_process(ranks: Ranks) -> None:
    assert ranks(rate_and_radius) == [pytest.approx(rate_and_radius(None), rel=1e-9)] * 2


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
