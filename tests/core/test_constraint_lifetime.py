"""An attached constraint keeps nothing alive, and copies of its surroundings are free of it."""

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from torch_alm import SAM, ALMConstraint, DualOptimizer


def fit(model: nn.Module) -> list[Any]:
    """One attached step; weak references to everything that took part."""
    optimizer = SGD(model.parameters(), lr=0.1)
    constraint = ALMConstraint(lambda x: model(x).mean(), alpha=1.0, mu=0.5)
    handle = constraint.attach(optimizer)
    constraint(torch.ones(1, 2)).backward()
    optimizer.step()
    assert constraint.metrics()["steps"] == 1
    return [weakref.ref(each) for each in (optimizer, constraint, handle)]


def test_a_thousand_fits_without_remove_keep_nothing_alive() -> None:
    found = []
    for _ in range(1000):
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
