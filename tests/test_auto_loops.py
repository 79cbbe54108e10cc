"""mu="auto" in the loops people have, beside its formula written out by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam

from torch_alm import ALMConstraint

WIDE, RATE, ALPHA, LAMBDA = torch.float64, 0.05, 5.0, 4.0
ROWS = torch.tensor([[1.0, 2.0, 3.0], [3.0, -1.0, 1.0]], dtype=WIDE)


def first_mu(a: Tensor, rest: Tensor, total: Tensor, acts: float = 1.0) -> float:
    """The rule for one step of SGD: a is grad c, rest the objective's gradient, total their sum.

    Of the penalty `acts` times its gradient arrives.
    """
    gain, balance = RATE * acts * float(a @ a), float(rest.norm() / a.norm()) / acts
    least = min(1e-3 / gain, 10 * float(total.norm()) / (acts * float(a.norm()) * ALPHA))
    return min(0.3 / gain, max(least, 0.3 * balance / ALPHA))


def weight(size: int = 3) -> Tensor:
    return torch.zeros(size, dtype=WIDE, requires_grad=True)


def part(x: Tensor, constraint: ALMConstraint, row: Tensor) -> Tensor:
    """Half of a step."""
    return 0.5 * ((x + 1).square().sum() + constraint(x, row))


def attached(optimizer: SGD, multiplier: float = 0.0) -> ALMConstraint:
    constraint = ALMConstraint(lambda x, row: row @ x, ALPHA, "auto", multiplier=multiplier)
    constraint.attach(optimizer)
    return constraint


def test_micro_batches_of_other_parameters_each_have_their_share() -> None:
    x, y = weight(), weight()
    optimizer = SGD([x, y], RATE)
    constraint = attached(optimizer)
    for p, row in zip((x, y), ROWS, strict=True):
        part(p, constraint, row).backward()
    optimizer.step()
    ones = torch.ones(6, dtype=WIDE)
    assert constraint.mu == pytest.approx(first_mu(-ROWS.flatten() / 2, ones, ones), rel=1e-9)


@pytest.mark.parametrize("order", [1, -1])
def test_a_micro_batch_that_reaches_another_optimizer_counts_as_one(order: int) -> None:
    x, y = weight(), weight()
    optimizer = SGD([x], RATE)
    constraint = attached(optimizer)
    for p, row in list(zip((x, y), ROWS, strict=True))[::order]:
        part(p, constraint, row).backward()
    optimizer.step()
    ones = torch.ones(3, dtype=WIDE)
    assert constraint.mu == pytest.approx(first_mu(-ROWS[0] / 2, ones, ones), rel=1e-9)


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("is_used", [False, True])
def test_the_smallest_parameter_need_not_be_the_constraints(is_used: bool, is_first: bool) -> None:
    """With a loss scale, and clipped: what was done to the gradient is seen elsewhere."""
    small, x = weight(1), weight()
    params = [small, x]
    optimizer = SGD(params, RATE)
    constraint = attached(optimizer, LAMBDA)
    scaler = GradScaler("cpu", init_scale=2.0**16)
    terms: list[Callable[[], Tensor]] = [
        lambda: (x + 1).square().sum() + (small.sum() if is_used else 0.0),
        lambda: constraint(x, ROWS[0]),
    ]
    first, second = terms[:: -1 if is_first else 1]
    scaler.scale(first() + second()).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(params, 0.5)
    scaler.step(optimizer)
    used = torch.ones(1, dtype=WIDE) if is_used else torch.zeros(1, dtype=WIDE)
    a = torch.cat([torch.zeros(1, dtype=WIDE), -ROWS[0]])
    rest = torch.cat([used, torch.full((3,), 2.0, dtype=WIDE)])
    total = rest + LAMBDA * a
    scale = 0.5 / float(total.norm())
    assert constraint.mu == pytest.approx(first_mu(a, scale * rest, scale * total, scale), rel=1e-5)


@pytest.mark.parametrize("factor", [1e-3, 1.0, 64.0])
@pytest.mark.parametrize("kind", [SGD, Adam])
@pytest.mark.parametrize("where", ["loss", "penalty", "clipping"])
def test_what_multiplies_the_penalty_on_its_way_changes_lambda_alone(
    where: str, kind: Any, factor: float
) -> None:
    """min |x - t|^2 / 2 with sum x <= 1, where lambda is 5/3: SGD's rate makes up for a factor."""
    x, target = weight(), torch.tensor([1.0, 2.0, 3.0], dtype=WIDE)
    rate = {SGD: RATE if where == "penalty" else RATE / factor, Adam: 0.01}[kind]
    optimizer = kind([x], rate)
    constraint = ALMConstraint(lambda: x.sum(), 1.0, "auto", sense="<=")
    constraint.attach(optimizer)
    for _ in range(2000):
        optimizer.zero_grad()
        objective, penalty = 0.5 * (x - target).square().sum(), constraint()
        if where == "clipping":
            (objective + penalty).backward()
            x.grad *= factor
        elif where == "loss":
            (factor * (objective + penalty)).backward()
        else:
            (objective + factor * penalty).backward()
        optimizer.step()
    assert float(x.detach().sum()) == pytest.approx(1, abs=1e-9)
    expected = 5 / 3 / (factor if where == "penalty" else 1.0)
    assert constraint.multiplier == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("set_to_none", [False, True])
def test_a_step_that_was_left_out_leaves_no_gradient_behind(set_to_none: bool) -> None:
    x = weight()
    optimizer = SGD([x], RATE)
    constraint = attached(optimizer, LAMBDA)
    for factor in (float("inf"), 1.0):
        (factor * (x + 1).square().sum() + constraint(x, ROWS[0])).backward()
        if factor != 1.0:
            optimizer.zero_grad(set_to_none=set_to_none)
    optimizer.step()
    rest = torch.full((3,), 2.0, dtype=WIDE)
    found = first_mu(-ROWS[0], rest, rest - LAMBDA * ROWS[0])
    assert constraint.mu == pytest.approx(found, rel=1e-9)


def test_the_last_micro_batch_in_the_closure_is_refused() -> None:
    x = weight()
    optimizer = SGD([x], RATE)
    constraint = attached(optimizer)
    part(x, constraint, ROWS[0]).backward()

    def last() -> Any:
        loss = part(x, constraint, ROWS[1])
        loss.backward()
        return loss

    with pytest.raises(RuntimeError, match="in the closure of its step"):
        optimizer.step(last)


def test_what_is_detached_looks_at_nothing_any_more() -> None:
    small, x = weight(1), weight()
    optimizer = SGD([small, x], RATE)
    constraint = ALMConstraint(lambda x, row: row @ x, ALPHA, "auto")
    attachment = constraint.attach(optimizer)
    part(x, constraint, ROWS[0]).backward()
    attachment.remove()
    part(x, constraint, ROWS[0]).backward()
    hooks = [p._post_accumulate_grad_hooks or {} for p in (small, x)]
    assert not any(hooks)


@pytest.mark.parametrize("is_scaled", [False, True])
@pytest.mark.parametrize("parts", [1, 4])
def test_a_factor_is_seen_in_rows_that_few_batches_use(parts: int, is_scaled: bool) -> None:
    """Most of an embedding's gradient is zero; G = lr |a|^2 times what the loss is divided by."""
    draws = torch.Generator().manual_seed(0)
    table = torch.randn(5000, 16, generator=draws, dtype=WIDE, requires_grad=True)
    optimizer, scaler = SGD([table], 0.05), torch.amp.GradScaler("cpu", enabled=is_scaled)
    constraint = ALMConstraint(lambda rows: table[rows].square().mean(), 3.0, "auto")
    constraint.attach(optimizer)
    batches = torch.randint(5000, (parts, 8), generator=draws)
    for rows in batches:
        scaler.scale((table[rows].sum() + constraint(rows)) / (2 * parts)).backward()
    scaler.unscale_(optimizer)
    (a,) = torch.autograd.grad(-sum(table[rows].square().mean() for rows in batches), table)
    scaler.step(optimizer)
    gain = constraint.state_dict()["auto"]["gain"]
    assert gain == pytest.approx(0.05 * float((a / parts).square().sum()) / 2, rel=1e-9)


@pytest.mark.parametrize("limit", [1e-3, 1e9])
def test_clipping_is_seen_where_one_side_of_an_adapter_has_no_gradient_yet(limit: float) -> None:
    """B = 0 hides it in A, which is the smaller one."""
    draws = torch.Generator().manual_seed(0)
    a, x = (torch.randn(2, 5, generator=draws, dtype=WIDE) for _ in range(2))
    down, up = a.requires_grad_(), torch.zeros(6, 2, dtype=WIDE, requires_grad=True)
    optimizer = SGD([down, up], 0.05)
    constraint = ALMConstraint(lambda: (x @ down.T @ up.T).sum(), 3.0, "auto")
    constraint.attach(optimizer)
    (slope,) = torch.autograd.grad((x @ down.T @ up.T).sum(), up)
    (constraint() + up.sum()).backward()
    kept = min(1.0, limit / (float(torch.nn.utils.clip_grad_norm_([down, up], limit)) + 1e-6))
    optimizer.step()
    gain = constraint.state_dict()["auto"]["gain"]
    assert gain == pytest.approx(0.05 * kept * float(slope.square().sum()), rel=1e-9)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_penalties_behind_a_closed_gate_add_up_in_any_order(set_to_none: bool) -> None:
    """Their passes leave zeros in `.grad`, as clearing it does."""
    found: list[float] = []
    for is_first in (True, False):
        x = weight()
        optimizer = SGD([x], RATE)
        constraint = ALMConstraint(lambda x, row: row @ x, -ALPHA, "auto")
        constraint.attach(optimizer)
        for _ in range(2):
            optimizer.zero_grad(set_to_none)
            penalties = [0.5 * constraint(x, row) for row in ROWS]
            objectives = [0.5 * (x + 1).square().sum() for _ in ROWS]
            parts = [*penalties, *objectives] if is_first else [*objectives, *penalties]
            for one in parts:
                one.backward()
            optimizer.step()
        assert constraint.multiplier == 0
        found.append(constraint.mu)
    assert found[0] == pytest.approx(found[1], rel=1e-12)
