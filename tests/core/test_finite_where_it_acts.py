"""Theta is reached by finite numbers only: after lambda+ has multiplied, and under a scaler."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from torch_alm import SAM, ALMConstraint, DualOptimizer, perturbed


def dual(theta: nn.Parameter, weight: float, scale: str = "gradient") -> DualOptimizer:
    """With lambda+ = `weight` in every step."""
    constraint = ALMConstraint(None, alpha=0.0, mu=0.0, multiplier=weight)
    return DualOptimizer(SGD([theta], lr=0.0), SGD([theta], lr=1e-3), constraint, scale=scale)


def step(optimizer: DualOptimizer, theta: nn.Parameter, slope: float) -> None:
    optimizer.backward(retain=lambda: theta.sum() * 0, forget=lambda: (theta * slope).sum())
    optimizer.step()
    optimizer.zero_grad()


def test_a_gradient_that_overflows_by_lambda_does_not_reach_theta() -> None:
    theta = nn.Parameter(torch.ones(2, dtype=torch.float16))
    optimizer = dual(theta, 900.0)
    with pytest.warns(UserWarning, match="once lambda\\+ multiplies it"):
        step(optimizer, theta, 100.0)  # 90,000 is beyond float16
    assert torch.equal(theta.detach(), torch.ones(2, dtype=torch.float16))
    assert optimizer.skipped == 1
    step(optimizer, theta, 50.0)
    assert torch.equal(theta.detach(), torch.full((2,), 1 + 45.0, dtype=torch.float16))
    assert optimizer.skipped == 1


def test_a_long_gradient_of_small_entries_is_not_taken_for_an_overflow() -> None:
    """Its norm, times lambda+, is beyond float16; none of its entries is."""
    theta = nn.Parameter(torch.zeros(40_000, dtype=torch.float16))
    optimizer = dual(theta, 400.0)
    step(optimizer, theta, 1.0)
    assert optimizer.skipped == 0
    torch.testing.assert_close(theta.detach(), torch.full_like(theta, 0.4).detach())


def test_a_finished_step_that_overflows_by_lambda_is_taken_back() -> None:
    theta = nn.Parameter(torch.ones(2, dtype=torch.float16))
    optimizer = dual(theta, 30_000.0, scale="step")
    with pytest.warns(UserWarning, match="forget step is skipped"):
        step(optimizer, theta, 10_000.0)  # 10 times lambda+
    assert torch.equal(theta.detach(), torch.ones(2, dtype=torch.float16))
    assert optimizer.skipped == 1
    step(optimizer, theta, 1.0)
    one = torch.tensor(1.0, dtype=torch.float16)
    step_taken = (one + 1e-3 - one).item()  # what float16 holds of 0.001
    assert theta[0].item() == pytest.approx(1 + 30_000 * step_taken, rel=1e-3)
    assert optimizer.skipped == 1


NUMBERS = [lambda x: x, np.float64, np.float32, torch.tensor, lambda x: torch.tensor(x).double()]


@pytest.mark.parametrize("kind", NUMBERS)
def test_radii_and_weights_may_be_numbers_of_any_kind(kind: type) -> None:
    def run(kind: type) -> Tensor:
        theta = nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64))
        optimizer = SAM(SGD([{"params": [theta], "rho": kind(0.25)}], lr=0.5), rho=kind(0.5))
        optimizer.backward(lambda: theta.square().sum(), weight=kind(0.5))
        optimizer.step()
        optimizer.zero_grad()
        del optimizer.param_groups[0]["rho"]
        optimizer = SAM(optimizer.base, rho=kind(0.125), eps=kind(0.0))
        assert type(optimizer.rho) is float and type(optimizer.eps) is float
        optimizer.backward(lambda: theta.square().sum())
        optimizer.step()
        with perturbed([theta], rho=kind(0.5), eps=kind(0.0)):
            pass
        return theta.detach()

    torch.testing.assert_close(run(kind), run(lambda x: x), rtol=0, atol=1e-15)


@pytest.mark.parametrize("bad", ["0.1", None, torch.ones(2), np.ones(2)])
def test_a_radius_that_is_no_number_is_refused(bad: object) -> None:
    with pytest.raises(TypeError, match=r"SAM: rho is .* where one number belongs"):
        SAM(SGD([nn.Parameter(torch.ones(1))], lr=0.1), rho=bad)
