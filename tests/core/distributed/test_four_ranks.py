"""Four ranks equal one process: weights sharded over all, in a grid, and beside tensor parallel."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW

from tests import oracle
from tests.core.distributed import task, test_checkpoint
from tests.core.distributed.ranks import Ranks
from tests.core.distributed.task import Outcome
from torch_alm import ALMConstraint, DualOptimizer

ENGINES = ("fsdp", "hsdp", "tp-fsdp")
SPAN = range(5)  # as few steps as open the gate, close it and open it again
Found = dict[str, list[Outcome]]


def rows(rank: int, engine: str) -> slice:
    """Ranks of one tensor-parallel group see the same rows."""
    if engine == "tp-fsdp":
        return task.rows_of(rank // 2, 2)
    return task.rows_of(rank, dist.get_world_size())


def saul(net: nn.Module, part: slice) -> Outcome:
    params = list(net.parameters())
    return dual(net, part, task.dual(params))


def plain_dual(net: nn.Module, part: slice) -> Outcome:
    params = list(net.parameters())
    sides = AdamW(params, lr=1e-2, weight_decay=1e-2), AdamW(params, lr=1e-2, weight_decay=0.0)
    constraint = ALMConstraint(None, alpha=0.0, mu=task.MU, multiplier=task.MULTIPLIER)
    return dual(net, part, DualOptimizer(*sides, constraint))


def dual(net: nn.Module, part: slice, optimizer: DualOptimizer) -> Outcome:
    constraint, multipliers, weights = optimizer.constraint, [], []
    for _ in task.steps(net, optimizer, part, SPAN):
        multipliers.append(constraint.multiplier)
        weights.append(constraint.weight)
    return Outcome([task.whole(p) for p in net.parameters()], multipliers, weights)


def penalised(net: nn.Module, part: slice) -> Outcome:
    """The constraint in the loss of one AdamW."""
    optimizer = AdamW(net.parameters(), lr=1e-2, weight_decay=1e-2)
    constraint = ALMConstraint(
        lambda loss: loss(), alpha=0.0, mu=task.MU, multiplier=task.MULTIPLIER
    )
    weights = []
    for step in SPAN:
        constraint.alpha = task.REOPENS[step]
        retain, forget = task.losses(net, task.batch(step, 0, part))
        (retain() + constraint(forget)).backward()
        optimizer.step()
        optimizer.zero_grad()
        weights.append(constraint.step())
    return Outcome([task.whole(p) for p in net.parameters()], weights, weights)


WAYS = {"saul": saul, "dual": plain_dual, "penalised": penalised}


def everything(rank: int, folder: str) -> dict[str, Outcome]:
    """All ways under all engines; half a run of the first is saved."""
    found = {
        f"{way} {engine}": run(task.wrapped(engine), rows(rank, engine))
        for engine in ENGINES
        for way, run in WAYS.items()
    }
    test_checkpoint.run(rank, "fsdp", (0, test_checkpoint.HALF), save=folder)
    return found


def penalised_by_hand() -> Outcome:
    net, multiplier, weights = task.model(), task.MULTIPLIER, []
    theta, s = list(net.parameters()), oracle.AdamW(1e-2, 1e-2)
    for step in SPAN:
        retain, forget = task.losses(net, task.batch(step, 0))
        g_r, _ = oracle.gradient(retain, theta)
        g_f, value = oracle.gradient(forget, theta)
        multiplier = max(multiplier + task.MU * (task.REOPENS[step] - value), 0.0)
        s.step(theta, [a - multiplier * b for a, b in zip(g_r, g_f, strict=True)])
        weights.append(multiplier)
    return Outcome([p.detach() for p in theta], weights, weights)


def dual_by_hand(rho_r: float, rho_f: float) -> Outcome:
    net, weights = task.model(), []
    theta = list(net.parameters())
    s_r, s_f = oracle.AdamW(1e-2, 1e-2), oracle.AdamW(1e-2, 0.0)
    algorithm = oracle.Saul(theta, s_r, s_f, 0.0, task.MU, task.MULTIPLIER, rho_r, rho_f)
    for step in SPAN:
        algorithm.alpha = task.REOPENS[step]
        retain, forget = task.losses(net, task.batch(step, 0))
        weights.append(algorithm.step([retain], [forget]))
    return Outcome([p.detach() for p in theta], weights, weights)


BY_HAND: dict[str, Callable[[], Outcome]] = {
    "saul": lambda: dual_by_hand(0.05, 0.1),
    "dual": lambda: dual_by_hand(0.0, 0.0),
    "penalised": penalised_by_hand,
}


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
@pytest.mark.parametrize("way", [*WAYS])
def test_four_ranks_are_one_process(found: list[dict[str, Outcome]], way: str, engine: str) -> None:
    expected = BY_HAND[way]()
    first, *others = [outcomes[f"{way} {engine}"] for outcomes in found]
    assert len(others) == 3
    for other in others:
        assert other.weights == first.weights and other.multipliers == first.multipliers
        assert all(torch.equal(a, b) for a, b in zip(other.theta, first.theta, strict=True))
    task.assert_gate_opens_and_closes(first.weights)
    assert [w > 0 for w in first.weights] == [w > 0 for w in expected.weights]
    torch.testing.assert_close(first.weights, expected.weights, rtol=0, atol=1e-12)
    torch.testing.assert_close(first.theta, expected.theta, rtol=0, atol=1e-12)


def test_what_four_ranks_saved_two_go_on_with(
    found: list[dict[str, Outcome]], saved: Path, ranks: Ranks
) -> None:
    span, options = (test_checkpoint.HALF, task.STEPS), {"load": str(saved)}
    through = test_checkpoint.run(None, "alone", (0, task.STEPS))
    for resumed in ranks(test_checkpoint.call, "fsdp", span, options):
        test_checkpoint.assert_close(resumed, through)


def test_one_rank_alone_would_be_something_else() -> None:
    """Each rank's rows lead elsewhere, so that equal results are those of all of them."""
    alone, part = BY_HAND["dual"](), plain_dual(task.model(), slice(0, 2))
    difference: Tensor = alone.theta[0] - part.theta[0]
    assert difference.abs().max() > 1e-3
