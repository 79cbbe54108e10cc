"""Autocast, checkpointing, dropout, loss scales, threads: the same step as in a plain loop."""

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from tests.core.table import (
    OURS,
    PERTURBED,
    ROWS,
    Batch,
    adamw,
    assert_same,
    backward,
    batch,
    build,
    loss,
    saul,
    sgd,
    train,
    values,
)
from torch_alm import SAM, DualOptimizer, ReverseSAM
from torch_alm._optim.objective import is_first_pass, is_running, mark_running

ours = pytest.mark.parametrize("name", OURS)


class Deep(nn.Module):
    """Two blocks that may be checkpointed, and dropout."""

    def __init__(self, reentrant: bool | None = None, dropout: float = 0.3) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Dropout(dropout))
        self.second = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(dropout))
        self.out = nn.Linear(16, 4)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.reentrant is None:
            x = self.second(x)
        else:
            x = checkpoint(self.second, x, use_reentrant=self.reentrant)
        return self.out(x)


def deep(reentrant: bool | None = None, dropout: float = 0.3) -> Deep:
    torch.manual_seed(0)
    model = Deep(reentrant, dropout).double()
    torch.manual_seed(7)
    return model


# Autocast


def bfloat16() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


def cast_each_pass(optimizer: Any, model: nn.Module, data: Batch) -> None:
    """An autocast of its own for every forward pass, which no cache outlives."""
    cast = lambda part: bfloat16()(lambda: loss(model, part))  # noqa: E731
    if isinstance(optimizer, DualOptimizer):
        optimizer.backward(retain=cast(data.retain), forget=cast(data.forget))
    else:
        optimizer.backward(cast(data.retain))


@ours
def test_one_autocast_around_the_step_equals_one_per_pass(name: str) -> None:
    model, optimizer = build(ROWS[name], dtype=torch.float32)
    other, reference = build(ROWS[name], dtype=torch.float32)
    for step in range(4):
        data = batch(step, torch.float32)
        with bfloat16():
            backward(optimizer, model, data)
            optimizer.step()
        cast_each_pass(reference, other, data)
        with bfloat16():  # Adafactor multiplies matrices
            reference.step()
        optimizer.zero_grad()
        reference.zero_grad()
    assert_same(values(model), values(other))


# Gradient checkpointing


@pytest.mark.parametrize("reentrant", [True, False])
@ours
def test_a_checkpointed_model_gives_the_same_weights(name: str, reentrant: bool) -> None:
    finals = []
    for how in (None, reentrant):
        model = deep(how)
        optimizer = ROWS[name](list(model.parameters()))
        train(optimizer, model, range(4))
        finals.append(values(model))
    assert_same(finals[1], finals[0])


# Dropout


@pytest.mark.parametrize("kind", [SAM, ReverseSAM])
def test_with_rho_0_dropout_and_all_it_is_its_base_bit_for_bit(kind: Any) -> None:
    finals = []
    for wrap in (lambda base: kind(base, rho=0.0), lambda base: base):
        model = deep()
        optimizer = wrap(adamw(list(model.parameters())))
        train(optimizer, model, range(6))
        finals.append((values(model), torch.get_rng_state()))
    assert_same(*finals)


@pytest.mark.parametrize("how", ["backward", "closure"])
@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize("kind", [SAM, ReverseSAM])
def test_both_passes_draw_the_same_numbers_if_asked_to(kind: Any, replay: bool, how: str) -> None:
    theta = nn.Parameter(torch.randn(5))
    optimizer = kind(SGD([theta], lr=0.1), rho=0.1, replay_rng=replay)
    drawn: list[Tensor] = []

    def objective() -> Tensor:
        drawn.append(torch.rand(5))
        return (theta * drawn[-1]).sum()

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = objective()
        value.backward()
        return value

    for _ in range(2):
        optimizer.backward(objective) if how == "backward" else optimizer.step(closure)
    one, same, two, again = drawn
    assert torch.equal(one, same) == replay
    assert torch.equal(two, again) == replay
    assert not torch.equal(one, two), "the next step draws new numbers"


# BatchNorm


@pytest.mark.parametrize("make", [lambda p: SAM(sgd(p), rho=0.1), saul])
def test_a_batch_moves_the_statistics_of_batch_norm_once(make: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4).eval()).double()
    other, optimizer = copy.deepcopy(model), make([*model[0].parameters()])
    for step in range(3):
        data = batch(step)
        backward(optimizer, model, data)
        optimizer.zero_grad()  # at the theta of before
        for part in data[: 1 + isinstance(optimizer, DualOptimizer)]:
            loss(other, part)
    for norm, its in zip(model[1:], other[1:], strict=True):
        found, expected = [norm.running_mean, norm.running_var], [its.running_mean, its.running_var]
        assert_same(found, expected)


# Loss scaling


def scaled(optimizer: Any, scale: float) -> torch.amp.GradScaler:
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000)
    optimizer.backward_fn = lambda value: scaler.scale(value).backward()
    return scaler


@pytest.mark.parametrize("unscaled", [False, True], ids=["", "unscale_ first"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [name for name in PERTURBED if name.startswith(("SAM", "Rev"))])
def test_a_grad_scaler_changes_nothing(name: str, dtype: torch.dtype, unscaled: bool) -> None:
    """A power of two scales without rounding: equal bit for bit under autocast of each type."""
    finals = []
    for scale in (None, 2.0**8):
        model, optimizer = build(ROWS[name], dtype=torch.float32)
        scaler = scaled(optimizer, scale) if scale else None
        for step in range(4):
            with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
                backward(optimizer, model, batch(step, torch.float32))
            if scaler is None:
                optimizer.step()
            else:
                if unscaled:
                    scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                assert not {"grad_scale", "found_inf"} & vars(optimizer).keys()
            optimizer.zero_grad()
        finals.append(values(model))
    tolerance = 1e-3 if dtype is torch.float16 else 0.0  # scaling saves what is subnormal
    torch.testing.assert_close(finals[1], finals[0], rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["SAM(SGD)", "ReverseSAM(AdamW)"])
def test_a_closure_under_a_grad_scaler_is_refused(name: str) -> None:
    model, optimizer = build(ROWS[name], dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    before = values(model)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = scaler.scale(loss(model, batch(0, torch.float32).retain))
        value.backward()
        return value

    closure()
    with pytest.raises(RuntimeError, match=r"step.closure. was called by a GradScaler"):
        scaler.step(optimizer, closure)
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        scaler.step(optimizer, closure=closure)
    assert_same(values(model), before)
    optimizer.zero_grad()
    train(optimizer, model, [0])  # torch takes its attributes back only after a step that returned
    change = (values(model)["out.weight"] - before["out.weight"]).abs().max()
    assert 1e-5 < change < 0.1, "a step of the usual size"


@pytest.mark.filterwarnings("ignore:SAM.step")
def test_under_a_scaler_a_step_without_any_gradient_moves_nothing() -> None:
    p, other = (nn.Parameter(torch.tensor([1.0, 2.0])) for _ in range(2))
    optimizer, trained = SAM(SGD([p], 0.1)), SGD([other], 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(other.square().sum()).backward()
    for each in (trained, optimizer):
        scaler.step(each)
    scaler.update()
    assert p.tolist() == [1.0, 2.0] and not torch.equal(other, p)
    optimizer.backward(lambda: p.sum())  # and the scaler has its loan back
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.tensor([0.9, 1.9]))


STEPS = 40


def test_two_threads_train_as_one_after_the_other() -> None:
    alone, loops = ([build(saul, seed) for seed in (0, 1)] for _ in range(2))
    for model, optimizer in alone:
        train(optimizer, model, range(STEPS))
    together = threading.Barrier(2)

    def loop(model: Any, optimizer: Any) -> None:
        for step in range(STEPS):
            backward(optimizer, model, batch(step))
            together.wait()
            optimizer.step()
            optimizer.zero_grad()

    threads = [threading.Thread(target=loop, args=each) for each in loops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (model, _), (expected, _) in zip(loops, alone, strict=True):
        assert_same(values(model), values(expected))


def test_a_pass_within_one_that_does_not_count_does_not_either() -> None:
    with mark_running(counts=False):
        with mark_running(counts=True):
            assert is_first_pass()
        assert is_first_pass()
    assert not is_running()
