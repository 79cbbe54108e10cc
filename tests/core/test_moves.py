"""The ways to move theta agree: in blocks, as on a CPU, and whole, as on an accelerator."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torch_alm import perturbed
from torch_alm._optim import gradients

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.complex64]


def parameters(dtype: torch.dtype) -> list[nn.Parameter]:
    torch.manual_seed(0)
    theta = [nn.Parameter(torch.randn(s, dtype=dtype)) for s in [(3, 5), (), (0, 4), (70_001,)]]
    theta.append(nn.Parameter(torch.randn(7, 6, dtype=dtype).t()))
    for p in theta:
        p.grad = torch.randn_like(p)
    return theta


def visit(dtype: torch.dtype, **settings: Any) -> list[Tensor]:
    """theta + delta; afterwards theta is back, bit for bit and in its place."""
    theta = parameters(dtype)
    before, places = [p.detach().clone() for p in theta], [p.data_ptr() for p in theta]
    with perturbed(theta, 0.7, **settings):
        there = [p.detach().clone() for p in theta]
        with torch.no_grad():
            theta[3].mul_(2)
    assert all(torch.equal(p.detach(), b) for p, b in zip(theta, before, strict=True))
    assert [p.data_ptr() for p in theta] == places
    return there


CASES = pytest.mark.parametrize(
    ("dtype", "settings"),
    [
        *((dtype, {"adaptive": adaptive}) for dtype in DTYPES for adaptive in (False, True)),
        (torch.bfloat16, {"rounding": "stochastic"}),
    ],
)


def assert_close(found: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> None:
    real = dtype.to_real() if dtype.is_complex else dtype
    torch.testing.assert_close(found, expected, rtol=4 * torch.finfo(real).eps, atol=1e-7)


@CASES
def test_whole_tensors_go_where_blocks_go(
    dtype: torch.dtype, settings: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = visit(dtype, **settings)
    monkeypatch.setattr(gradients, "HOST", ())
    assert_close(visit(dtype, **settings), expected, dtype)


@pytest.mark.parametrize("blockwise", [("cpu",), ()], ids=["host", "device"])
def test_eps_is_added_to_the_norm(blockwise: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "HOST", blockwise)
    p = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    p.grad = torch.tensor([3.0, 4.0], dtype=torch.float64)
    with perturbed([p], 6.0, eps=1.0):
        assert p.tolist() == pytest.approx([3.0, 4.0], abs=1e-14)


def test_adaptive_norms_are_in_float32() -> None:
    p = nn.Parameter(torch.randn(1000).bfloat16())
    p.grad = torch.randn(1000).bfloat16()
    expected = (p.detach().double() * p.grad.double()).norm().item()
    with perturbed([p], 0.1, adaptive=True) as found:
        assert found.norm.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_of_many_entries_are_exact_in_any_order(dtype: torch.dtype) -> None:
    """One float32 sum over all of these is off by a thousandth."""
    g = torch.randn(10_000, 1000).to(dtype)
    expected = pytest.approx(g.double().norm().item(), rel=1e-5)
    assert gradients.norm([g]).item() == expected
    assert gradients.norm([g.t()]).item() == expected
