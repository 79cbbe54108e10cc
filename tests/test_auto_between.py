"""mu="auto" between two optimizers: batches, engines and steps that are not the usual ones."""

import math
from itertools import pairwise
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, AdamW

from torch_alm import ALMConstraint, DualOptimizer

WIDE = torch.float64


def weight(*values: float) -> Tensor:
    return torch.tensor(values, dtype=WIDE, requires_grad=True)


def spoilt_by(factor: float, x: Tensor) -> Tensor:
    """A loss that is not finite, or one of which only the gradient is not."""
    return x.square().sum() * factor if factor else 0 * (0 * x.sum()).sqrt() + x.square().sum()


@pytest.mark.filterwarnings("ignore:.*not finite")
@pytest.mark.parametrize("factor", [math.nan, math.inf, 0.0])
def test_a_batch_that_is_not_finite_costs_one_forget_step(factor: float) -> None:
    x = weight(0.1, 0.1)
    limit = ALMConstraint(None, 2.0, "auto")
    make = lambda: AdamW([x], 0.01, weight_decay=0.0)  # noqa: E731
    dual = DualOptimizer(make(), make(), limit, scale="step")
    for step in range(500):
        spoilt = factor if step == 45 else 1.0
        dual.backward(
            retain=lambda: (x - 0.5).square().sum(),
            forget=lambda k=spoilt: spoilt_by(k, x),
        )
        dual.step()
        dual.zero_grad()
    assert dual.skipped == 1
    aim: dict[str, Any] = limit.state_dict()["auto"]["aim"]
    assert all(map(math.isfinite, aim.values()))
    assert float(x.detach().square().sum()) == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_step_that_would_raise_the_violation_is_not_made(momentum: float) -> None:
    """Momentum points past the largest F, 3, and 3.05 is asked for."""
    x = weight(0.0)
    dual = DualOptimizer(
        SGD([x], 0.0),
        SGD([x], 0.01, momentum=momentum),
        ALMConstraint(None, 3.05, "auto"),
        scale="step",
    )
    violations: list[float] = []
    for _ in range(400):
        losses = dual.backward(
            retain=lambda: 0 * x.sum(), forget=lambda: 3 - (x - 2).square().sum()
        )
        violations.append(3.05 - float(losses.forget))
        dual.step()
        dual.zero_grad()
    assert violations[-1] == pytest.approx(0.05, abs=1e-3)
    assert all(b <= a + 1e-2 for a, b in pairwise(violations))


@pytest.mark.parametrize("parts", [4, 16])
@pytest.mark.parametrize("scale", ["gradient", "step"])
def test_an_engine_may_divide_by_the_number_of_micro_batches(
    scale: Literal["gradient", "step"], parts: int
) -> None:
    """Accumulate as `accelerator.backward` does; `weight=` leaves the same gradients."""
    rows = torch.randn(parts, 3, generator=torch.Generator().manual_seed(0), dtype=WIDE)
    found: list[tuple[float, ...]] = []
    for share, divide in ((1 / parts, None), (1.0, lambda loss: (loss / parts).backward())):
        x, gains = weight(0.0, 0.0, 0.0), list[float]()
        limit = ALMConstraint(None, 1.0, "auto")
        dual = DualOptimizer(SGD([x], 0.05), SGD([x], 0.05), limit, scale=scale, backward=divide)
        for _ in range(40):
            for row in rows:
                dual.backward(
                    retain=lambda x=x, row=row: 0.5 * (x + 1 + row).square().sum(),
                    forget=lambda x=x, row=row: (x * (1 + 0.1 * row)).sum(),
                    weight=share,
                )
            dual.step()
            dual.zero_grad()
            gains.append(limit.state_dict()["auto"]["gain"])
        slope = 1 + 0.1 * rows.mean(0)
        assert gains[0] == pytest.approx(0.05 * float(slope @ slope), rel=1e-9)
        found.append((limit.mu, limit.multiplier, *x.tolist()))
    assert found[0] == pytest.approx(found[1], rel=1e-9)


@pytest.mark.parametrize("factor", [0.0, 1e-2, -1.0, 1e3])
def test_a_forget_gradient_says_nothing_of_the_retain_sides_constraint(factor: float) -> None:
    """Its own: G = lr |a|^2."""
    x = weight(0.3, -0.7, 1.1)
    a, b = (torch.tensor(v, dtype=WIDE) for v in ([1.0, 2.0, -0.5], [0.2, -1.0, 3.0]))
    dual = DualOptimizer(SGD([x], 0.01), SGD([x], 0.0), ALMConstraint(None, 1.0, 1.0))
    constraint = ALMConstraint(lambda: a @ x, 5.0, "auto")
    constraint.attach(dual)
    dual.backward(
        retain=lambda: (x - 1).square().sum() + constraint(), forget=lambda: factor * (b @ x)
    )
    dual.step()
    found = constraint.state_dict()["auto"]["gain"]
    assert found == pytest.approx(0.01 * float(a @ a), rel=1e-9)


def test_what_the_retain_side_alone_moves_counts_in_the_balance() -> None:
    """Name |r| / |a|, over all that is stepped on."""
    x, y = weight(1.0, 1.0), weight(1.0, 1.0)
    limit = ALMConstraint(None, 5.0, "auto")
    dual = DualOptimizer(SGD([x, y], 0.1), SGD([x, y], 0.1), limit)
    dual.backward(retain=lambda: 0.01 * x.square().sum() + 100 * y.sum(), forget=lambda: x.sum())
    dual.step()
    r = math.sqrt(2 * 0.02**2 + 2 * 100**2)
    assert limit.state_dict()["auto"]["balance"] == pytest.approx(r / math.sqrt(2), rel=1e-9)


@pytest.mark.parametrize("scale", ["gradient", "step"])
def test_a_register_that_is_clipped_to_nothing_makes_no_step(
    scale: Literal["gradient", "step"],
) -> None:
    x = weight(1.0)
    dual = DualOptimizer(
        SGD([x], 0.1), SGD([x], 0.1), ALMConstraint(None, 5.0, "auto"), scale=scale
    )
    for _ in range(2):
        dual.backward(retain=lambda: x.square().sum(), forget=lambda: x.sum())
        dual.clip_grad_norm_(0.0)
        dual.step()
        dual.zero_grad()
    assert x.item() == 1.0


@pytest.mark.parametrize("scale", ["gradient", "step"])
def test_a_measurement_that_is_gone_before_the_step_is_missed(
    scale: Literal["gradient", "step"],
) -> None:
    x = weight(1.0)
    limit = ALMConstraint(None, 5.0, "auto")
    dual = DualOptimizer(SGD([x], 0.1), SGD([x], 0.1), limit, scale=scale)
    dual.backward(retain=lambda: x.square().sum(), forget=lambda: x.sum())
    limit.discard()
    with pytest.raises(RuntimeError, match="found no measurement"):
        dual.step()
