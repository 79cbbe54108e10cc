"""mu="auto" while the rate moves: what is found is a price, which does not depend on it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR

from torch_alm import ALMConstraint, DualOptimizer

STEPS = 1200
SCHEDULES: dict[str, Callable[[Optimizer], LRScheduler]] = {
    "warm-up": lambda o: LambdaLR(o, lambda t: min(1.0, (t + 1) / 200)),
    "warm-up from 0": lambda o: LambdaLR(o, lambda t: min(1.0, t / 500)),
    "cosine": lambda o: CosineAnnealingLR(o, STEPS),
    "one cycle": lambda o: OneCycleLR(o, max_lr=0.05, total_steps=STEPS),
}


def to_a_sum() -> tuple[list[float], Any, Any, float, float]:
    """The nearest point to (1, 2, 3) whose sum is at least 9: each goes up by 1, the multiplier."""
    goal = torch.tensor([1.0, 2.0, 3.0])
    return [0.0] * 3, lambda x: (x - goal).square().sum() / 2, ">=", 9.0, 1.0


def a_budget() -> tuple[list[float], Any, Any, float, float]:
    """Hours h by their value v, at most 6 in all: h = v / lambda."""
    value = torch.tensor([1.0, 2.0, 3.0, 4.0])
    return [10.0] * 4, lambda h: -(value * h.clamp(min=1e-6).log()).sum(), "<=", 6.0, 10 / 6


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [("warm-up", a_budget), ("warm-up from 0", to_a_sum), ("cosine", to_a_sum),
     ("one cycle", a_budget)],
)  # fmt: skip
def test_a_schedule_ends_at_the_limit_and_lambda_is_never_far_from_its_price(
    schedule: str, problem: Callable[[], tuple[list[float], Any, Any, float, float]]
) -> None:
    start, objective, sense, alpha, price = problem()
    x, peak = torch.tensor(start, requires_grad=True), 0.0
    optimizer = Adam([x], lr=0.02)
    scheduler = SCHEDULES[schedule](optimizer)
    constraint = ALMConstraint(x.sum, alpha, "auto", sense=sense)
    constraint.attach(optimizer)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (objective(x) + constraint()).backward()
        optimizer.step()
        scheduler.step()
        peak = max(peak, float(constraint.multiplier))
    assert x.sum().item() == pytest.approx(alpha, rel=0.01)
    assert constraint.multiplier == pytest.approx(price, rel=0.1) and peak < 1.5 * price


def test_a_finished_step_is_scaled_by_a_number_for_mu_alone() -> None:
    theta = torch.zeros(1, requires_grad=True)
    sides, found = (SGD([theta]), SGD([theta])), ALMConstraint(None, 1.0, "auto")
    with pytest.raises(ValueError, match=r'mu="auto".*scale="step".*mu=0.1'):
        DualOptimizer(*sides, found, scale="step")
    dual = DualOptimizer(*sides, ALMConstraint(None, 1.0, 0.5), scale="step")
    dual.constraint = found
    with pytest.raises(ValueError, match=r'scale="step"'):
        dual.backward(retain=theta.sum, forget=theta.sum)


def test_a_violated_constraint_whose_mu_is_not_known_yet_is_measured_in_the_next_step() -> None:
    theta = torch.ones(3, requires_grad=True)
    measured = list[float]()

    def forget() -> Tensor:
        measured.append(theta.sum().item())
        return theta.sum()

    sides = (Adam([theta], lr=1e-3) for _ in range(2))
    dual = DualOptimizer(*sides, ALMConstraint(None, 9.0, "auto"), probe_every=8)
    for _ in range(3):
        dual.backward(retain=lambda: theta.square().sum(), forget=forget)
        dual.step()
        dual.zero_grad()
    assert len(measured) == 3 and max(measured) < 9.0
