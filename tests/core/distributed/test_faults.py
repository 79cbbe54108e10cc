"""Faults on one rank: nothing hangs, theta returns, and the error says where."""

import os
import random
import time
import traceback
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from tests.core.distributed import elastic, task
from tests.core.distributed.ranks import Ranks
from tests.core.distributed.test_checkpoint import Saved
from torch_alm import ALMConstraint

WAIT = 3.0  # seconds after which a rank that waits for another gives up


def until_killed(rank: int, folder: str, dies_at: int, resume: bool) -> list[Tensor]:
    """A checkpoint after every second step; the process dies in the middle of step `dies_at`."""
    net = task.wrapped("fsdp")
    params = list(net.parameters())
    optimizer = task.dual(params)
    saved = Saved(net, optimizer)
    start = 0
    if resume:
        start = max(
            int(path.name) for path in Path(folder).iterdir() if (path / ".metadata").exists()
        )
        saved.load(f"{folder}/{start}")

    def dies(loss: Tensor) -> None:
        loss.backward()
        if optimizer.constraint.metrics()["steps"] == dies_at:
            os._exit(1)

    optimizer.backward_fn = dies
    for step in task.steps(net, optimizer, task.rows_of(rank), range(start, task.STEPS)):
        if (step + 1) % 2 == 0 and dies_at < task.STEPS:
            saved.save(f"{folder}/{step + 1}")
    return [task.whole(p) for p in params]


def test_a_killed_run_resumes_bit_for_bit(ranks: Ranks, tmp_path: Path) -> None:
    dies_at = random.Random(5).randrange(3, task.STEPS)
    through = ranks(until_killed, str(tmp_path), task.STEPS, False)
    assert ranks(until_killed, str(tmp_path), dies_at, False) == [None, None]
    resumed = ranks(until_killed, str(tmp_path), task.STEPS, True)
    for found, expected in zip(resumed, through, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def nan_on_one_rank(rank: int, engine: str) -> tuple[list[Tensor], float, int, list[str]]:
    net = task.wrapped(engine)
    params = list(net.parameters())
    optimizer = task.dual(params)
    optimizer.constraint.alpha = 5.0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(3):
            retain, forget = task.losses(net, task.batch(step, 0, task.rows_of(rank)))
            spoiled = float("nan") if (rank, step) == (1, 1) else 1.0
            optimizer.backward(retain=retain, forget=lambda f=forget, s=spoiled: s * f())
            optimizer.step()
            optimizer.zero_grad()
    said = [
        str(w.message) for w in caught if "torch_alm" in str(w.message) or "Dual" in str(w.message)
    ]
    constraint = optimizer.constraint
    return [task.whole(p) for p in params], constraint.multiplier, optimizer.skipped, said


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_a_nan_on_one_rank_reaches_no_weight_on_any(ranks: Ranks, engine: str) -> None:
    first, second = ranks(nan_on_one_rank, engine)
    assert all(theta.isfinite().all() for theta in first[0])
    assert all(torch.equal(a, b) for a, b in zip(first[0], second[0], strict=True))
    assert first[1] == second[1] > 0 and first[2] == second[2] == 1
    assert any("forget gradient is not finite" in line for line in first[3])


def nan_in_the_loss(rank: int, engine: str, mu: object) -> tuple[list[Tensor], float, int]:
    net = task.wrapped(engine)
    params = list(net.parameters())
    optimizer = SGD(params, lr=0.05)
    constraint = ALMConstraint(lambda x: net(x).square().mean(), 5.0, mu)
    constraint.attach(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(3):
            x = torch.full((2, 6), 1.0 + rank, dtype=torch.float64)
            spoiled = float("nan") if (rank, step) == (1, 1) else 1.0
            (net(x).square().mean() + constraint(spoiled * x)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [task.whole(p) for p in params], constraint.multiplier, constraint.skipped


@pytest.mark.parametrize(("engine", "mu"), [("ddp", 0.5), ("ddp", "auto"), ("fsdp", 0.5)])
def test_a_nan_in_the_loss_of_one_rank_leaves_the_penalty_out_on_all(
    ranks: Ranks, engine: str, mu: object
) -> None:
    first, second = ranks(nan_in_the_loss, engine, mu)
    assert all(theta.isfinite().all() for theta in first[0])
    assert all(torch.equal(a, b) for a, b in zip(first[0], second[0], strict=True))
    assert first[1:] == second[1:] and first[2] == 1
    if mu == 0.5:
        expected, multiplier = nan_in_the_loss_by_hand()
        assert first[1] == pytest.approx(multiplier, rel=1e-9)
        for found, p in zip(first[0], expected, strict=True):
            torch.testing.assert_close(found, p, rtol=1e-9, atol=1e-12)


def nan_in_the_loss_by_hand() -> tuple[list[Tensor], float]:
    """Algorithm 1 in one process: the second step has a measurement of one rank and no penalty."""
    net = task.model()
    params, multiplier = list(net.parameters()), 0.0
    for step in range(3):
        x = (torch.full((2, 6), 1.0 + rank, dtype=torch.float64) for rank in range(2))
        values = [net(each).square().mean() for each in x]
        seen = values[:1] if step == 1 else values
        violation = 5.0 - torch.stack(seen).mean()
        weight = max(0.0, multiplier + 0.5 * violation.item())
        push = 0.0 if step == 1 else weight * violation
        grads = torch.autograd.grad(torch.stack(values).mean() + push, params)
        with torch.no_grad():
            for p, g in zip(params, grads, strict=True):
                p -= 0.05 * g
        multiplier = weight
    return [p.detach() for p in params], multiplier


def failing(rank: int, engine: str, side: str, failing_pass: int) -> tuple[bool, str, float]:
    """An error in one rank's objective: whether theta returned, what was said, how long it took."""
    net = task.wrapped(engine)
    params = list(net.parameters())
    optimizer = task.dual(params)
    before = [task.whole(p) for p in params]
    objectives = dict(zip(("retain", "forget"), task.losses(net, task.batch(0, 0)), strict=True))
    healthy, passes = objectives[side], 0

    def fails() -> Tensor:
        nonlocal passes
        passes += 1
        if rank == 1 and passes == failing_pass:
            raise MemoryError("out of memory")
        return healthy()

    began = time.monotonic()
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        optimizer.backward(**{**objectives, side: fails})
    said = "".join(traceback.format_exception(caught.value))
    local = [p.to_local() if engine == "fsdp" else p.detach() for p in params]
    wanted = [w.chunk(2)[rank] if engine == "fsdp" else w for w in before]
    same = all(torch.equal(a, b) for a, b in zip(local, wanted, strict=True) if a.numel())
    return same and all(p.grad is None for p in params), said, time.monotonic() - began


@pytest.mark.parametrize(
    ("engine", "side", "failing_pass"),
    [("ddp", "retain", 2), ("ddp", "forget", 1), ("fsdp", "forget", 2)],
)
def test_an_objective_that_fails_on_one_rank(
    ranks: Ranks, engine: str, side: str, failing_pass: int
) -> None:
    waiting, failed = ranks(failing, engine, side, failing_pass, timeout=WAIT)
    for returned, said, seconds in (waiting, failed):
        assert returned, said
        assert seconds < 10 * WAIT
    assert "out of memory" in failed[1]


@pytest.mark.usefixtures("forks")
def test_a_rank_that_dies_and_comes_back_goes_on_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else both attempts meet in one store, where the second may find an address of the first.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    first, second = elastic.launch(elastic.train, str(tmp_path), 5)
    assert first == second and (first["start"], first["restarts"]) == (4, 1)
    expected = task.by_hand(lambda step: [task.batch(step, 0)])
    theta = [torch.tensor(p, dtype=torch.float64) for p in first["theta"]]
    torch.testing.assert_close(theta, expected.theta, rtol=0, atol=1e-12)
    assert first["multiplier"] == pytest.approx(expected.multipliers[-1], abs=1e-12)
