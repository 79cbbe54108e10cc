"""Weights narrower than float32: where a perturbation takes them, and what rounding draws."""

import pytest
import torch
from torch import Tensor, nn

from torch_alm import perturbed
from torch_alm._optim.rounding import CACHED, Noise

NARROW = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
SIZES = pytest.mark.parametrize("size", [7, CACHED + 5])


def drawn(size: int, dtype: torch.dtype, scale: float) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (scale * torch.randn(size, generator=generator, dtype=torch.float64)).to(dtype)


@NARROW
@SIZES
@pytest.mark.parametrize("scale", [1e-6, 1.0])
def test_theta_is_moved_in_float32_and_rounded_once(
    size: int, dtype: torch.dtype, scale: float
) -> None:
    """The factor rho / |g| is beyond float16 for the small gradient, and not a bfloat16."""
    theta, g, rho = (
        nn.Parameter(drawn(size, dtype, 1.0)),
        drawn(size, dtype, scale),
        0.37 * size**0.5,
    )
    before, theta.grad = theta.detach().clone(), g.clone()
    exact = before.double() + rho * g.double() / g.double().norm()
    spacing = torch.finfo(dtype).eps * exact.abs()
    with perturbed([theta], rho):
        miss = (theta.detach().double() - exact).abs()
    assert (miss <= 0.5001 * spacing + 6e-8).all()
    assert torch.equal(theta.detach(), before), "bit for bit"


@NARROW
def test_rounding_is_right_on_average_and_leaves_what_fits(dtype: torch.dtype) -> None:
    exact, eps = 1.0 + 0.3 * torch.finfo(dtype).eps, torch.finfo(dtype).eps
    noise, total = Noise(torch.tensor(1.5)), torch.zeros(64, dtype=torch.float64)
    for _ in range(1000):
        total += noise.rounded(torch.full((64,), exact), dtype).double()
        fits = torch.tensor([1.0, -0.5, 0.0, 3.0])
        assert torch.equal(noise.rounded(fits.clone(), dtype), fits)
    share = (total / 1000 - 1.0) / eps
    assert (share - 0.3).abs().max() < 0.07, "five standard errors of a share of 1000"
    assert abs(share.mean().item() - 0.3) < 0.01


def test_noise_depends_on_its_seed_and_on_the_call_alone() -> None:
    def draws(seed: float, calls: int) -> Tensor:
        noise = Noise(torch.tensor(seed))
        return torch.stack(
            [noise.rounded(torch.full((256,), 1.001), torch.bfloat16) for _ in range(calls)]
        )

    first = draws(2.0, 600)
    assert torch.equal(first, draws(2.0, 600)), "the same on all ranks and after a resume"
    assert not torch.equal(first, draws(2.5, 600))
    assert len({tuple(row.tolist()) for row in first}) > 590, "a new place for each call"
