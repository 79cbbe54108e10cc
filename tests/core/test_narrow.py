"""Weights narrower than float32: where a perturbation takes them, and what rounding draws."""

import pytest
import torch
from torch import Tensor, nn

from torch_alm import perturbed
from torch_alm._optim.rounding import CACHED

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
