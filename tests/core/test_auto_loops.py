"""mu="auto" in the loops people have, whose rates move, beside its formula written by hand."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adagrad, Adam, Optimizer, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR
from torch.utils.checkpoint import checkpoint

from tests.core.optimizers import SKIPPED, of_torch, variants
from torch_alm import ALMConstraint, DualOptimizer
from torch_alm._optim.steps import KNOWN, preconditioner, response

WIDE, RATE, ALPHA, LAMBDA = torch.float64, 0.05, 5.0, 4.0
ROWS = torch.tensor([[1.0, 2.0, 3.0], [3.0, -1.0, 1.0]], dtype=WIDE)


def first_mu(a: Tensor, rest: Tensor, acts: float = 1.0) -> float:
    """The rule for one step of SGD: a is grad c, rest the objective's gradient.

    Of the penalty `acts` times its gradient arrives.
    """
    gain, balance = RATE * acts * float(a @ a), float(rest.norm() / a.norm()) / acts
    return min(0.3 / gain, max(1e-3 / gain, 0.3 * balance / ALPHA))


def weight(size: int = 3) -> Tensor:
    return torch.zeros(size, dtype=WIDE, requires_grad=True)


def part(x: Tensor, constraint: ALMConstraint, row: Tensor) -> Tensor:
    """Half of a step."""
    return 0.5 * ((x + 1).square().sum() + constraint(x, row))


def attached(optimizer: SGD, multiplier: float = 0.0) -> ALMConstraint:
    constraint = ALMConstraint(lambda x, row: row @ x, ALPHA, "auto", multiplier=multiplier)
    constraint.attach(optimizer)
    return constraint


def test_what_the_loss_makes_of_the_penalty_is_in_mu() -> None:
    x = weight()
    optimizer = SGD([x], RATE)
    constraint = attached(optimizer, LAMBDA)
    (4 * part(x, constraint, ROWS[0])).backward()
    optimizer.step()
    expected = first_mu(-ROWS[0], torch.full((3,), 4.0, dtype=WIDE), acts=2.0)
    assert constraint.mu == pytest.approx(expected, rel=1e-12)


def refused(step: Callable[[], object], word: str) -> None:
    with pytest.raises(RuntimeError, match=rf'mu="auto" found .*{word}.*mu=0.1'):
        step()


def test_gradients_changed_before_the_step_are_refused_at_once_and_later_warned_of() -> None:
    x = weight()
    optimizer = SGD([x], RATE)
    constraint = attached(optimizer)

    def step(limit: float) -> None:
        part(x, constraint, ROWS[0]).backward()
        clip_grad_norm_([x], limit)
        optimizer.step()

    refused(lambda: step(0.5), "GradScaler.*clipping")
    constraint.discard()
    step(1e9)
    with pytest.warns(UserWarning, match=r'mu="auto" found gradients that .* clipping changed'):
        step(0.5)


@pytest.mark.parametrize("fused", [True, False])
def test_a_loss_scale_is_refused_by_name(fused: bool) -> None:
    theta = torch.ones(3, requires_grad=True)
    optimizer, scaler = Adam([theta], fused=fused), GradScaler("cpu")
    constraint = ALMConstraint(lambda: theta.sum(), 9.0, "auto")
    constraint.attach(optimizer)
    scaler.scale(theta.square().sum() + constraint()).backward()
    refused(lambda: scaler.step(optimizer), "loss scale")


def test_what_an_optimizer_does_not_step_is_not_left_out_in_silence() -> None:
    body, head = (nn.Parameter(torch.ones(3)) for _ in "bh")
    constraint = ALMConstraint(lambda: (body * head).sum(), 9.0, "auto")
    for optimizer in (Adam([body]), Adam([head])):
        constraint.attach(optimizer)
        refused(constraint, "1 weights .* another optimizer, or none, steps")
    body.requires_grad_(False)
    constraint().backward()


@pytest.mark.parametrize("is_hidden", [True, False])
def test_a_checkpoint_that_hides_gradients_is_refused(is_hidden: bool) -> None:
    x, body, head = torch.ones(1, requires_grad=True), nn.Linear(1, 1), nn.Parameter(torch.ones(1))
    constraint = ALMConstraint(
        lambda: (head * checkpoint(body, x, use_reentrant=is_hidden)).sum(), 9.0, "auto"
    )
    constraint.attach(SGD([*body.parameters(), head], RATE))
    with pytest.raises(RuntimeError, match="use_reentrant=True") if is_hidden else nullcontext():
        constraint().backward()


def test_a_hinge_that_is_flat_for_long_is_no_measure_without_a_gradient() -> None:
    x = weight(1)
    optimizer = SGD([x], lr=0.01)
    constraint = ALMConstraint(lambda: (x - 0.8).relu().sum(), 0.1, "auto", sense="<=")
    constraint.attach(optimizer)
    for step in range(400):
        optimizer.zero_grad()
        ((x - 1).square().sum() + constraint()).backward()
        optimizer.step()
        if step == 59:  # the next one would calibrate, and has a value only
            constraint.observe(0.0)
            assert (constraint.step(), constraint.mu) == (0.0, 0.0)
    assert x.item() == pytest.approx(0.9, abs=0.01)


def test_a_gradient_added_by_hand_is_refused_by_name() -> None:
    theta = torch.ones(3, requires_grad=True)
    optimizer = Adam([theta])
    constraint = ALMConstraint(lambda: theta.sum(), 9.0, "auto")
    constraint.attach(optimizer)
    (theta.grad,) = torch.autograd.grad(theta.square().sum() + constraint(), [theta])
    refused(optimizer.step, "by hand")


def test_a_number_that_is_assigned_ends_the_search() -> None:
    x = weight()
    optimizer = SGD([x], RATE)
    constraint = attached(optimizer)
    part(x, constraint, ROWS[0]).backward()
    optimizer.step()
    assert constraint.mu != 0.125
    constraint.mu, before = 0.125, float(constraint.multiplier)
    part(x, constraint, ROWS[0]).backward()
    expected = before + 0.125 * (ALPHA - float(ROWS[0] @ x.detach()))
    assert constraint.preview() == pytest.approx(expected, rel=1e-12)
    optimizer.step()
    assert constraint.mu == 0.125 and constraint.multiplier == pytest.approx(expected, rel=1e-12)
    assert not constraint._wants_gradient and "auto" not in constraint.state_dict()


def test_a_pass_that_failed_leaves_nothing_in_the_step_that_is_made_again() -> None:
    x = weight()
    optimizer = SGD([x], RATE)
    constraint = attached(optimizer)
    handle = x.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        part(x, constraint, ROWS[0]).backward()
    handle.remove()
    constraint.discard()
    for row in ROWS:
        part(x, constraint, row).backward()
    optimizer.step()
    ones = torch.ones(3, dtype=WIDE)
    assert constraint.mu == pytest.approx(first_mu(ROWS.mean(0), 2 * ones), rel=1e-12)


EVERY = [case for name in (*of_torch(), *SKIPPED) for case in variants(name)]
EVERY = [case for case in EVERY if "weight_decay" not in case[1]]  # which pulls back itself


@pytest.mark.parametrize(("name", "settings"), EVERY)
def test_what_a_steady_pull_moves_in_a_step_is_foreseen_or_the_optimizer_refused(
    name: str, settings: dict[str, Any]
) -> None:
    """Gradients turn round in every step, which keeps v; a small pull is added to those of one."""
    theta, other = ([torch.zeros(3, 2, dtype=WIDE, requires_grad=True)] for _ in "ab")
    kind = getattr(torch.optim, name.removeprefix("torch."))
    optimizer, pulled = kind(theta, lr=0.01, **settings), kind(other, lr=0.01, **settings)
    g = torch.tensor([[0.5, 1.0], [2.0, 3.0], [4.0, 0.1]], dtype=WIDE)
    a = 1e-6 * torch.tensor([[2.0, -1.0], [1.0, 0.5], [-3.0, 1.0]], dtype=WIDE)
    if not isinstance(optimizer, KNOWN):
        with pytest.raises(RuntimeError, match=rf"found {kind.__name__}, .*mu=0\.1"):
            response(optimizer, {theta[0]: a}, {}, {theta[0]: g})
        return
    for step in range(360):
        if step == 340:
            before = theta[0].detach().clone(), other[0].detach().clone()
        for (p,), pull in ((theta, 0 * a), (other, a if step >= 240 else 0 * a)):
            p.grad = (-1) ** step * g + pull
        optimizer.step()
        pulled.step()
    gain, balance, _ = response(optimizer, {theta[0]: a}, {}, {theta[0]: -g})
    moved = (other[0] - before[1]) - (theta[0] - before[0])
    found = abs(float((a * moved.detach()).sum())) / 20
    assert gain == pytest.approx(found, rel=0.06, abs=0) and balance == 0


STEPS = 1200  # of a schedule
SCHEDULES: dict[str, Callable[[Optimizer], LRScheduler]] = {
    "warm-up": lambda o: LambdaLR(o, lambda t: min(1.0, t / 500)),
    "cosine": lambda o: CosineAnnealingLR(o, STEPS),
    "one cycle": lambda o: OneCycleLR(o, max_lr=0.05, total_steps=STEPS),
}


@pytest.mark.parametrize(
    ("make", "taken"),
    [(lambda p: Adagrad(p, lr=0.01, lr_decay=0.1), 0),
     (lambda p: RMSprop(p, lr=0.01, centered=True), 600)],
    ids=["a sum that is 0 so far", "centered"],
)  # fmt: skip
def test_what_divides_a_step_is_read_as_it_will_be(make: Any, taken: int) -> None:
    """Gradients between 0.9 and 1.1 of their mean."""
    theta, mean = torch.zeros(2, dtype=WIDE, requires_grad=True), torch.tensor([3.0, -0.2])
    optimizer = make([theta])
    for step in range(taken + 1):
        before, theta.grad = theta.detach().clone(), (1 + 0.1 * (-1) ** step) * mean.double()
        if step == taken:
            group, state = optimizer.param_groups[0], optimizer.state[theta]
            rate, root = preconditioner(group, state, theta.grad)
        optimizer.step()
    found = (before - theta.detach()) / theta.grad
    torch.testing.assert_close(found, rate / root, rtol=0.03, atol=0)


def to_a_sum() -> tuple[list[float], Any, Any, float, float]:
    """The nearest point to (1, 2, 3) whose sum is at least 9: each goes up by 1, the multiplier."""
    goal = torch.tensor([1.0, 2.0, 3.0])
    return [0.0] * 3, lambda x: (x - goal).square().sum() / 2, ">=", 9.0, 1.0


def a_budget() -> tuple[list[float], Any, Any, float, float]:
    """Hours h by their value v, at most 6 in all: h = v / lambda."""
    value = torch.tensor([1.0, 2.0, 3.0, 4.0])
    return [10.0] * 4, lambda h: -(value * h.clamp(min=1e-6).log()).sum(), "<=", 6.0, 10 / 6


@pytest.mark.parametrize(
    ("schedule", "problem"), [("warm-up", a_budget), ("cosine", to_a_sum), ("one cycle", a_budget)]
)
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
