"""Cheaper steps with the same result: backward passes skipped, measurements spared."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from tests.core import table
from tests.core.distributed.task import assert_gate_opens_and_closes
from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM

STEPS = 40


def alpha_at(step: int) -> float:
    return (5.0, -5.0)[step // 10 % 2]


class Run:
    """Training with the gate opening and closing, and what it took."""

    def __init__(
        self, *, sides: str = "sam", last: bool = False, micro: int = 1, probe_every: Any = 1
    ) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        theta = list(self.net.parameters())
        retain, forget = AdamW(theta, lr=0.02), AdamW(theta, lr=0.02, weight_decay=0.1)
        if sides == "sam":
            retain, forget = SAM(retain, rho=0.05), ReverseSAM(forget, rho=0.05)
        self.constraint = ALMConstraint(None, alpha=0.0, mu=0.5)
        self.optimizer = DualOptimizer(
            retain, forget, self.constraint, backward=self.backward, probe_every=probe_every
        )
        self.last, self.micro = last, micro
        self.backwards = self.measured = 0
        self.weights: list[float] = []

    def backward(self, loss: Tensor) -> None:
        self.backwards += 1
        loss.backward()

    def step(self, i: int) -> None:
        self.constraint.alpha = alpha_at(i)
        generator = torch.Generator().manual_seed(i)
        for k in range(self.micro):
            x, z = (torch.randn(4, 3, generator=generator, dtype=torch.float64) for _ in range(2))

            def forget(z: Tensor = z) -> Tensor:
                self.measured += 1
                return self.net(z).square().mean()

            self.losses = self.optimizer.backward(
                retain=lambda x=x: (self.net(x) - 1).square().mean(),
                forget=forget,
                weight=1 / self.micro,
                last=self.last and k == self.micro - 1,
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.weights.append(self.constraint.weight)

    def train(self) -> "Run":
        for i in range(STEPS):
            self.step(i)
        return self

    def theta(self) -> list[Tensor]:
        return [p.detach() for p in self.net.parameters()]


def assert_same(found: Run, expected: Run) -> None:
    assert_gate_opens_and_closes(expected.weights)
    assert found.weights == expected.weights
    assert found.constraint.state_dict() == expected.constraint.state_dict()
    assert all(torch.equal(a, b) for a, b in zip(found.theta(), expected.theta(), strict=True))
    table.assert_same(found.optimizer.forget.state_dict(), expected.optimizer.forget.state_dict())


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("sides", ["sam", "plain"])
def test_a_skipped_backward_changes_nothing(sides: str, micro: int) -> None:
    full = Run(sides=sides, micro=micro).train()
    skipping = Run(sides=sides, micro=micro, last=True).train()
    assert_same(skipping, full)
    assert skipping.backwards == full.backwards - sum(w == 0 for w in full.weights)


@pytest.mark.parametrize(("mu", "passes"), [(0.5, 1), ("auto", 2)])
def test_a_mu_that_is_found_takes_the_gradient_behind_a_closed_gate(mu: Any, passes: int) -> None:
    run = Run(sides="plain", last=True)
    run.constraint = ALMConstraint(None, alpha=0.0, mu=mu)
    run.optimizer.constraint = run.constraint
    run.step(10)
    assert run.constraint.weight == 0 and run.backwards == passes


def test_zero_grad_leaves_alone_what_others_observed() -> None:
    theta = nn.Parameter(torch.ones(1))
    constraint = ALMConstraint(None, 5.0, 1.0)
    optimizer = DualOptimizer(SGD([theta], lr=0.1), SGD([theta], lr=0.1), constraint)
    constraint.observe(2.0)
    optimizer.zero_grad()
    assert constraint.observed == 1


def test_probe_every_counts_from_one() -> None:
    theta = nn.Parameter(torch.ones(1))
    optimizer = DualOptimizer(SGD([theta]), SGD([theta]))
    assert optimizer.probe_every == 1, "Algorithm 1 measures in every step"
    told = {"auto": "is 'auto'.* 8, every 8th", 0: "is 0", 2.5: "is 2.5", "2": "is '2'"}
    for refused, words in told.items():
        with pytest.raises(ValueError, match=f"probe_every {words}"):
            DualOptimizer(SGD([theta]), SGD([theta]), probe_every=refused)


def measured_after(change: Callable[[DualOptimizer], None]) -> bool:
    """Tell whether a released constraint is measured in the step after a change in a pause."""
    theta = nn.Parameter(torch.ones(1))
    constraint = ALMConstraint(None, alpha=-5.0, mu=1.0)
    sides = SGD([theta], lr=0.1), SGD([theta], lr=0.1)
    optimizer = DualOptimizer(*sides, constraint, probe_every=16)

    def step() -> bool:
        losses = optimizer.backward(retain=lambda: 0 * theta.sum(), forget=lambda: theta.sum())
        optimizer.step()
        optimizer.zero_grad()
        return not math.isnan(losses.forget)

    assert [step() for _ in range(5)][2:] == [False] * 3
    change(optimizer)
    return step()


def stepped_by_hand(optimizer: DualOptimizer) -> None:
    optimizer.constraint.observe(1.0)
    optimizer.constraint.step()


def resumed_under(alpha: float) -> Callable[[DualOptimizer], None]:
    """Settings are in no checkpoint: it may be gone on with under another threshold."""

    def change(optimizer: DualOptimizer) -> None:
        saved = optimizer.state_dict()
        optimizer.constraint = ALMConstraint(None, alpha=alpha, mu=1.0)
        optimizer.load_state_dict(saved)

    return change


CHANGES = {
    "alpha": lambda optimizer: setattr(optimizer.constraint, "alpha", 5.0),
    "multiplier": lambda optimizer: setattr(optimizer.constraint, "multiplier", 9.0),
    "mu": lambda optimizer: setattr(optimizer.constraint, "mu", 2.0),
    "another": lambda o: setattr(o, "constraint", ALMConstraint(None, alpha=-5.0, mu=1.0)),
    "none": lambda optimizer: setattr(optimizer, "constraint", None),
    "stepped": stepped_by_hand,
    "resumed": resumed_under(5.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_constraint_that_is_another_one_now_ends_the_pause(name: str) -> None:
    assert measured_after(CHANGES[name])


@pytest.mark.parametrize("change", [lambda _: None, resumed_under(-5.0)])
def test_a_constraint_that_stays_the_same_does_not(change: Any) -> None:
    assert not measured_after(change)


@pytest.mark.parametrize(("alpha", "is_refused"), [(-6.0, False), (5.0, True)])
def test_what_opens_a_gate_whose_gradient_was_skipped_is_refused(
    alpha: float, is_refused: bool
) -> None:
    theta = nn.Parameter(torch.ones(2))
    sides = SGD([theta], lr=0.1), SGD([theta], lr=0.1)
    optimizer = DualOptimizer(*sides, ALMConstraint(None, alpha=-5.0, mu=1.0))
    objectives = {"retain": lambda: 0 * theta.sum(), "forget": lambda: theta.sum()}
    optimizer.backward(**objectives, last=True)
    optimizer.constraint.alpha = alpha
    if is_refused:
        with pytest.raises(RuntimeError, match=r"skipped the forget gradient.*alpha, mu or lambda"):
            optimizer.step()
        assert optimizer.constraint.steps == 0 and theta.tolist() == [1.0, 1.0]
        optimizer.zero_grad()
        optimizer.backward(**objectives, last=True)
    optimizer.step()
    assert (optimizer.constraint.weight, optimizer.constraint.steps) == (3.0 * is_refused, 1)
    assert (theta.detach() > 1).all() == is_refused
