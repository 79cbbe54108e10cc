"""The update as a hook of the optimizer's step: once per step, and not for a step skipped."""

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD, AdamW

from torch_alm import SAM, ALMConstraint, ConstraintGroup, DualOptimizer, ReverseSAM

BASES: dict[str, Any] = {
    "SGD": SGD,
    "AdamW": AdamW,
    "AdamW, fused": lambda p, lr: AdamW(p, lr=lr, fused=True),
}


class Loop:
    """One weight, a constraint on it, and an optimizer the constraint is attached to."""

    def __init__(self, make: Any = SGD, **given: Any) -> None:
        self.x = torch.zeros(1, requires_grad=True)
        self.optimizer = make([self.x], lr=0.1)
        self.constraint = ALMConstraint(lambda shift: self.x[0] + shift, alpha=1.0, mu=0.5, **given)
        self.handle = self.constraint.attach(self.optimizer)

    def loss(self, shift: float = 0.0) -> Tensor:
        return self.x.square().sum() + self.constraint(shift)

    @property
    def steps(self) -> int:
        return self.constraint.metrics()["steps"]


def test_one_update_per_step_with_accumulation() -> None:
    loop = Loop()
    for shift in (0.0, -2.0, -4.0):
        loop.loss(shift).backward()
    assert loop.steps == 0
    loop.optimizer.step()
    assert loop.steps == 1 and loop.constraint.multiplier == 0.5 * 3.0
    assert loop.constraint.observed == 0


def test_removed_hooks_do_nothing() -> None:
    loop = Loop()
    loop.handle.remove()
    loop.loss().backward()
    loop.optimizer.step()
    assert loop.steps == 0 and loop.constraint.observed == 1
    assert not loop.x._backward_hooks and not loop.x._post_accumulate_grad_hooks


@pytest.mark.filterwarnings("ignore:SAM.step")
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("clear_first", [True, False], ids=["zero_grad before", "zero_grad after"])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("base", BASES)
def test_a_step_that_a_scaler_skips_is_none_and_moves_nothing(
    base: str, parts: int, clear_first: bool, wrapped: bool
) -> None:
    """Its measurement is averaged with the next, of the same theta, whoever is stepped."""
    sam = lambda p, lr: SAM(BASES[base](p, lr=lr), rho=0.0)  # noqa: E731
    loop = Loop(sam if wrapped else BASES[base])
    scaler = GradScaler("cpu", init_scale=4.0)
    values = []
    for step in range(5):
        before = loop.x.item()
        forward = loop.loss(float(step))
        if clear_first:
            loop.optimizer.zero_grad()
        for part in range(parts):
            loss = forward if part == 0 else loop.loss(float(step))
            broken = loop.x.sum() * (torch.inf if step in (0, 2) else 0.0)
            scaler.scale(loss + broken).backward()
        scaler.step(loop.optimizer)
        scaler.update()
        if not clear_first:
            loop.optimizer.zero_grad()
        values.append(loop.constraint.metrics()["value"])
        if step in (0, 2):
            assert loop.x.item() == before
        else:
            is_averaged = step in (1, 3)
            assert values[-1] == pytest.approx(before + step - 0.5 * is_averaged)
    assert loop.steps == 3 and values[1] == values[2]


def test_one_that_two_steps_did_not_measure_says_so_once() -> None:
    loop = Loop()
    loop.optimizer.step()
    with pytest.warns(UserWarning, match="attached to have measured nothing"):
        loop.optimizer.step()
    loop.optimizer.step()  # warnings are errors
    loop.loss().backward()
    loop.optimizer.step()
    assert loop.steps == 1


def test_something_that_is_no_optimizer_is_named() -> None:
    with pytest.raises(TypeError, match=r"attach takes a torch.optim.Optimizer and found Linear"):
        ALMConstraint(None, 1.0, 1.0).attach(torch.nn.Linear(1, 1))


def test_a_group_attaches_as_one() -> None:
    x = torch.zeros(1, requires_grad=True)
    optimizer = SGD([x], lr=0.1)
    one, two = (ALMConstraint(None, alpha, 0.5) for alpha in (1.0, 2.0))
    group = ConstraintGroup({"a": one, "b": two})
    handle = group.attach(optimizer)
    group.observe({"a": 0.0, "b": 0.0})
    with pytest.warns(UserWarning, match="no parameter .* has a gradient; lambda would grow"):
        optimizer.step()
    assert [c.multiplier for c in group.values()] == [0.5, 1.0]
    handle.remove()
    group.observe({"a": 0.0, "b": 0.0})
    optimizer.step()
    assert [c.observed for c in group.values()] == [1, 1]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("where", ["retain", "forget", "both"])
@pytest.mark.parametrize("kind", ["plain", "SAM"])
def test_a_constraint_inside_the_objectives_of_a_dual_optimizer(
    kind: str, where: str, parts: int
) -> None:
    """A step is the mean of what its second passes have measured; in the first none is observed."""

    def made(p: Any, lr: float) -> DualOptimizer:
        first, second = SGD(p, lr=lr), SGD(p, lr=lr)
        if kind == "SAM":
            return DualOptimizer(SAM(first, rho=0.0), ReverseSAM(second, rho=0.0))
        return DualOptimizer(first, second)

    loop, shifts = Loop(made), {"retain": 0.0, "forget": -2.0}

    def objective(side: str) -> Tensor:
        plain = loop.x.square().sum()
        return loop.loss(shifts[side]) if where in (side, "both") else plain

    for step in range(1, 6):
        expected = loop.x.item() + (-1.0 if where == "both" else shifts[where])
        for _ in range(parts):
            loop.optimizer.backward(
                retain=lambda: objective("retain"), forget=lambda: objective("forget")
            )
        assert loop.constraint.observed == parts * (2 if where == "both" else 1)
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        assert loop.steps == step
        assert loop.constraint.metrics()["value"] == pytest.approx(expected, abs=1e-6)
    assert loop.constraint.multiplier > 0


def fit(model: nn.Module) -> list[Any]:
    """One attached step; weak references to everything that took part."""
    optimizer = SGD(model.parameters(), lr=0.1)
    constraint = ALMConstraint(lambda x: model(x).mean(), alpha=1.0, mu=0.5)
    handle = constraint.attach(optimizer)
    constraint(torch.ones(1, 2)).backward()
    optimizer.step()
    assert constraint.metrics()["steps"] == 1
    return [weakref.ref(each) for each in (optimizer, constraint, handle)]


def test_a_hundred_fits_without_remove_keep_nothing_alive() -> None:
    found = []
    for _ in range(100):
        model = nn.Linear(2, 1)
        found += [weakref.ref(model), weakref.ref(model.weight), *fit(model)]
    del model
    gc.collect()
    assert not any(each() for each in found)


def test_a_constraint_that_is_kept_keeps_no_optimizer() -> None:
    optimizer, constraint = SGD(nn.Linear(2, 1).parameters()), ALMConstraint(None, 1.0, 0.5)
    constraint.attach(optimizer)
    found = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert found() is None


@pytest.mark.filterwarnings("ignore:ALMConstraint. no parameter")
def test_the_optimizer_alone_keeps_an_attachment_going() -> None:
    def attached(optimizer: SGD) -> Any:
        constraint = ALMConstraint(None, 1.0, 0.5)
        constraint.attach(optimizer)
        constraint.observe(0.0)
        return weakref.ref(constraint)

    optimizer = SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    found = attached(optimizer)
    gc.collect()
    optimizer.step()
    assert found().multiplier == 0.5


class Parts(nn.Module):
    """A model, its optimizer and its constraint, to be copied together."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.optimizer = DualOptimizer(
            SAM(SGD(self.layer.parameters(), lr=0.1), rho=0.1), SGD(self.layer.parameters(), lr=0.1)
        )
        self.constraint = ALMConstraint(None, alpha=1.0, mu=0.5)


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_of_what_is_attached_are_complete_and_on_their_own(how: str) -> None:
    parts = Parts()
    parts.constraint.attach(parts.optimizer)
    parts.constraint.observe(0.0)
    other = copy.deepcopy(parts) if how == "deepcopy" else pickle.loads(pickle.dumps(parts))
    other.constraint.attach(other.optimizer)
    for each in (other, parts):
        each.optimizer.backward(
            retain=lambda e=each: e.layer.weight.sum(), forget=lambda e=each: e.layer.bias.sum()
        )
        each.optimizer.step()
        assert each.constraint.metrics()["steps"] == 1
        assert parts.constraint.metrics()["steps"] == (0 if each is other else 1)
    assert torch.equal(parts.layer.weight, other.layer.weight)
