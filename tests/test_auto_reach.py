"""mu="auto" where the optimizer, the loss or a batch is not the usual one."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from torch_alm import ALMConstraint, DualOptimizer
from torch_alm._constraint.foretold import movers

WIDE = torch.float64
TARGET = torch.tensor([1.0, 2.0, 3.0], dtype=WIDE)
LAMBDA = 5 / 3  # of min |x - TARGET|^2 / 2 with sum x <= 1


def weight() -> Tensor:
    return torch.zeros(3, dtype=WIDE, requires_grad=True)


def distance(x: Tensor) -> Tensor:
    return 0.5 * (x - TARGET).square().sum()


@pytest.mark.parametrize("forget", [lambda p: Adam(p, 1e-5), lambda p: SGD(p, 10.0)])
def test_a_constraint_in_the_retain_loss_follows_the_retain_side(forget: Any) -> None:
    x = weight()
    never = ALMConstraint(None, 100.0, 0.1, sense="<=")
    dual = DualOptimizer(SGD([x], 0.05), forget([x]), never)
    constraint = ALMConstraint(lambda: x.sum(), 1.0, "auto", sense="<=")
    constraint.attach(dual)
    for _ in range(1500):
        dual.backward(retain=lambda: distance(x) + constraint(), forget=lambda: x[0] * 1.0)
        dual.step()
        dual.zero_grad()
    assert float(x.detach().sum()) == pytest.approx(1, abs=1e-6)
    assert constraint.multiplier == pytest.approx(LAMBDA, rel=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: AdamW(p, 0.01, weight_decay=0.0),
        lambda p: Adam(p, 0.01, amsgrad=True),
        lambda p: SGD(p, 0.01),
        lambda p: SGD(p, 0.01, momentum=0.9, dampening=0.5),
        lambda p: SGD(p, 0.01, momentum=0.9, nesterov=True),
        lambda p: RMSprop(p, 0.01),
        lambda p: RMSprop(p, 0.01, alpha=0.999, momentum=0.9),
        lambda p: Adagrad(p, 0.01, lr_decay=0.1),
        lambda p: Adagrad(p, 0.01, initial_accumulator_value=0.5),
    ],
)
def test_the_step_that_is_foretold_is_the_one_that_is_taken(make: Any) -> None:
    """From the first one on, which has no past."""
    x = torch.tensor([1.0, -2.0, 0.5], dtype=WIDE, requires_grad=True)
    optimizer: Optimizer = make([x])
    draws = torch.Generator().manual_seed(0)
    for _ in range(6):
        x.grad = torch.randn(3, generator=draws, dtype=WIDE)
        foretold = movers(optimizer)[x].next(x.grad.clone(), slice(0, 3))
        before = x.detach().clone()
        optimizer.step()
        torch.testing.assert_close(before - x.detach(), foretold, rtol=1e-6, atol=1e-12)


def test_the_rate_of_a_step_is_the_one_that_has_decayed() -> None:
    """Adagrad: lr / (1 + steps taken * lr_decay), beside the root of its sum."""
    x = torch.tensor([2.0], dtype=WIDE, requires_grad=True)
    optimizer = Adagrad([x], 0.5, lr_decay=0.1)
    for _ in range(4):
        x.grad = torch.ones(1, dtype=WIDE)
        optimizer.step()
    rate, root = movers(optimizer)[x].step(torch.ones(1, dtype=WIDE), slice(0, 1))
    assert rate == pytest.approx(0.5 / 1.4, rel=1e-12)
    assert root is not None and root.item() == pytest.approx(2.0, rel=1e-9)


@pytest.mark.parametrize("first", [True, False])
def test_a_batch_that_nothing_depends_on_ends_no_run(first: bool) -> None:
    """A row of the rare class is missing from it, say."""
    x = weight()
    optimizer = SGD([x], 0.05)
    constraint = ALMConstraint(lambda rows: x[rows].sum() if rows else x.new_zeros(()), 1.0, "auto")
    constraint.attach(optimizer)
    for rows in ([], [0]) if first else ([0], []):
        optimizer.zero_grad()
        (distance(x) + constraint(rows)).backward()
        optimizer.step()
    assert constraint.mu > 0


@pytest.mark.parametrize("parts", [1, 4, 32])
def test_a_micro_batch_that_nothing_depends_on_counts_as_one(parts: int) -> None:
    """A measure without a graph is one whose gradient is zero."""
    gains: list[Any] = []
    for nothing in (lambda x: x.new_zeros(()), lambda x: 0.0 * x.sum()):
        x = weight()
        optimizer = SGD([x], 0.05)
        constraint = ALMConstraint(lambda f, x=x: f(x), 1.0, "auto", sense="<=", multiplier=1.0)
        constraint.attach(optimizer)
        for measure in (*[nothing] * (parts - 1), Tensor.sum):
            ((distance(x) + constraint(measure)) / parts).backward()
        optimizer.step()
        gains.append(constraint.state_dict()["auto"])
    torch.testing.assert_close(gains[0], gains[1])


@pytest.mark.parametrize("unit", [1e-22, 1e-10])
def test_a_measure_of_any_unit_in_float32(unit: float) -> None:
    """A sequence has a probability so small; mu is far beyond what float32 holds."""
    found: list[Tensor] = []
    for by in (1.0, unit):
        x = torch.zeros(3, requires_grad=True)
        optimizer = SGD([x], 0.05)
        constraint = ALMConstraint(lambda x=x, by=by: by * x.sum(), by, "auto", sense="<=")
        constraint.attach(optimizer)
        for _ in range(500):
            optimizer.zero_grad()
            (0.5 * (x - TARGET.float()).square().sum() + constraint()).backward()
            optimizer.step()
        found.append(x.detach())
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-6)


def test_a_measure_that_never_has_a_gradient_is_refused() -> None:
    x = weight()
    optimizer = SGD([x], 0.05)
    constraint = ALMConstraint(lambda: x.detach().sum(), 1.0, "auto")
    constraint.attach(optimizer)
    with pytest.raises(RuntimeError, match="needs the constraint's gradient"):
        for _ in range(20):
            optimizer.zero_grad()
            (distance(x) + constraint()).backward()
            optimizer.step()


def test_a_call_that_fails_in_its_own_backward_pass_has_observed_nothing() -> None:
    class Full(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            raise RuntimeError("out of memory")

    x = weight()
    constraint = ALMConstraint(lambda: Full.apply(x).sum(), 1.0, "auto")
    optimizer = SGD([x], 0.05)
    constraint.attach(optimizer)
    with pytest.raises(RuntimeError, match="out of memory"):
        constraint()
    assert constraint.observed == 0


def test_a_compiled_measure_that_gives_its_memory_away_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def grad(*_: Any, **__: Any) -> Any:
        raise RuntimeError("compiled with non-empty donated buffers ... retain_graph=False")

    monkeypatch.setattr("torch.autograd.grad", grad)
    x = weight()
    constraint = ALMConstraint(lambda: x.sum(), 1.0, "auto")
    optimizer = SGD([x], 0.05)
    constraint.attach(optimizer)
    with pytest.raises(RuntimeError, match="donated_buffer = False"):
        constraint()
    assert constraint.observed == 0
