"""Moves of theta: the same in blocks and whole, and the part that narrow weights hold of them."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from tests.core.test_perturb import parameters
from torch_alm import SAM, perturbed
from torch_alm._optim import gradients
from torch_alm._optim.rounding import Noise

NARROW = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def weights(dtype: torch.dtype, size: int = 40_000) -> nn.Parameter:
    """Weights as in a language model, with a gradient."""
    generator = torch.Generator().manual_seed(0)
    theta, g = (torch.randn(size, generator=generator) for _ in range(2))
    p = nn.Parameter((0.02 * theta).to(dtype))
    p.grad = g.to(dtype)
    return p


@NARROW
@pytest.mark.parametrize(("adaptive", "gaps"), [(False, 2.0), (True, 90.0)])
def test_realised_is_what_a_float64_computation_finds(
    dtype: torch.dtype, adaptive: bool, gaps: float
) -> None:
    p, rho = weights(dtype), gaps * torch.finfo(dtype).eps
    origin, g = p.detach().double(), p.grad.double()
    unit = origin.abs() if adaptive else torch.ones_like(g)
    optimizer = SAM(SGD([p]), rho=rho, adaptive=adaptive)
    with optimizer.perturbed() as perturbation:
        moved = p.detach().double() - origin
        assert perturbation is optimizer.perturbation
    meant = rho * unit.square() * g / (unit * g).norm()
    expected = ((moved @ meant) / (meant @ meant)).item()
    assert perturbation.realised == pytest.approx(expected, rel=1e-4)
    assert expected > 0.5
    assert abs(expected - 1) > 1e-3


def test_what_was_realised_is_that_of_all_weights_whatever_their_kinds() -> None:
    kinds = torch.bfloat16, torch.float32, torch.float64, torch.complex64
    params = [nn.Parameter(torch.ones(3, dtype=kind)) for kind in kinds]
    for p, length in zip(params, (0.2, 0.6, 0.3, 0.1), strict=True):
        p.grad = torch.full_like(p, length)
    norm = sum((p.grad.abs().double() ** 2).sum() for p in params).sqrt().item()
    with SAM(SGD(params), rho=1e-3).perturbed() as perturbation:
        assert torch.equal(params[0], torch.ones(3, dtype=torch.bfloat16)), "swallowed"
    share = 3 * (0.6**2 + 0.3**2 + 0.1**2) / norm**2
    assert perturbation.realised == pytest.approx(share, rel=1e-2)


def test_it_is_measured_once_where_something_moves_and_weights_are_narrow() -> None:
    optimizer, found = SAM(SGD([p := weights(torch.bfloat16)]), rho=10.0), []
    wide, g = SAM(SGD([q := weights(torch.float32)]), rho=10.0), p.grad
    for gradient in (torch.zeros_like(g), g, g):
        p.grad, q.grad = gradient, gradient.float()
        with optimizer.perturbed() as seen, wide.perturbed() as other:
            found.append((seen.realised is not None, other.realised))
    assert found == [(False, None), (True, None), (False, None)]


def perturb_twice(rounding: str, dtype: torch.dtype, rho: float = 1e-4) -> list[str]:
    p = weights(dtype)
    optimizer, g = SAM(SGD([p]), rho=rho, rounding=rounding), p.grad
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            p.grad = g
            with optimizer.perturbed():
                pass
    return [str(w.message) for w in caught]


@NARROW
def test_swallowing_is_told_once_and_only_where_it_happens(dtype: torch.dtype) -> None:
    (said,) = perturb_twice("nearest", dtype)
    assert "SAM: the weights' dtype swallows the perturbation" in said and "stochastic" in said
    assert perturb_twice("stochastic", dtype) == []
    assert perturb_twice("nearest", torch.float32) == []
    assert perturb_twice("nearest", dtype, rho=10.0) == []


@NARROW
@pytest.mark.parametrize("adaptive", [False, True])
def test_stochastic_rounding_is_right_on_average(dtype: torch.dtype, adaptive: bool) -> None:
    p = weights(dtype)
    origin, g = p.detach().clone(), p.grad.double()
    unit = origin.double().abs() if adaptive else torch.ones_like(g)
    meant = 0.01 * unit.square() * g / (unit * g).norm()
    with perturbed([p], 0.01, rounding="stochastic", adaptive=adaptive):
        moved = p.detach().double() - origin.double()
    assert torch.equal(p.detach(), origin)
    projection = moved @ meant / (meant @ meant)
    noise = 6 * (moved.norm() / meant.norm()).item() / len(g) ** 0.5  # six standard errors
    assert abs(projection.item() - 1) < noise


def test_an_unknown_rounding_is_refused() -> None:
    p = weights(torch.bfloat16)
    with pytest.raises(ValueError, match="rounding is 'up'"), perturbed([p], 0.1, rounding="up"):
        pass


def hashed(number: int) -> int:
    """Integers of 32 bits, mixed."""
    x = number % 2**32
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        x = (x ^ x >> shift) * factor % 2**32
    return x


def bits(value: Tensor) -> list[int]:
    return [n % 2**32 for n in value.reshape(-1).view(torch.int32).tolist()]


@pytest.mark.parametrize(("dtype", "dropped"), [(torch.bfloat16, 16), (torch.float16, 13)])
def test_noise_is_the_same_on_every_machine(dtype: torch.dtype, dropped: int) -> None:
    """Entry i of the k-th call gets hash(hash(seed + k c) + i), in the bits dropped."""
    seed = torch.tensor(3.7)
    noise, (start,) = Noise(seed), bits(seed)
    for call, size in enumerate([50, 2**18, *[50] * 8], 1):
        values = torch.randn(size)
        given = bits(values)
        found = bits(noise.round(values.clone(), dtype))
        first = hashed(start + call * 0x61C88647 % 2**31)
        for i in {*range(min(size, 50)), size - 1}:
            carried = given[i] + (hashed(first + i) & (2**dropped - 1))
            assert found[i] == carried >> dropped << dropped


def drawn(size: int, dtype: torch.dtype, scale: float) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (scale * torch.randn(size, generator=generator, dtype=torch.float64)).to(dtype)


@NARROW
@pytest.mark.parametrize("size", [7, 262_149])
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


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.complex64]


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
