"""The part of a perturbation that narrow weights hold, and what to do about it."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from torch_alm import SAM, ReverseSAM, perturbed
from torch_alm._optim.rounding import CACHED, Noise

NARROW = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def weights(dtype: torch.dtype, size: int = 40_000) -> nn.Parameter:
    """Weights as in a language model, with a gradient."""
    generator = torch.Generator().manual_seed(0)
    theta, g = (torch.randn(size, generator=generator) for _ in range(2))
    p = nn.Parameter((0.02 * theta).to(dtype))
    p.grad = g.to(dtype)
    return p


@NARROW
def test_realised_is_what_a_float64_computation_finds(dtype: torch.dtype) -> None:
    p = weights(dtype)
    origin, g = p.detach().double(), p.grad.double()
    with perturbed([p], rho=1e-3, diagnose=True) as perturbation:
        moved = p.detach().double() - origin
    meant = 1e-3 * g / g.norm()
    found = perturbation.realised
    assert found.length == pytest.approx((moved.norm() / meant.norm()).item(), rel=1e-4)
    cosine = moved @ meant / (moved.norm() * meant.norm())
    assert found.cosine == pytest.approx(cosine.item(), rel=1e-4)
    assert found.share == pytest.approx(((moved != 0).sum() / (meant != 0).sum()).item())
    assert 0 < found.share < 0.8


@pytest.mark.parametrize("wrapper", [SAM, ReverseSAM])
def test_wide_weights_hold_it_all(wrapper: type) -> None:
    p = weights(torch.float64)
    optimizer = wrapper(SGD([p]), rho=0.01, diagnose=True)
    with optimizer.perturbed() as perturbation:
        assert perturbation is optimizer.perturbation
    assert perturbation.realised == pytest.approx((1.0, 1.0, 1.0), abs=1e-9)


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_nothing_to_move_is_not_a_number(value: float) -> None:
    p = weights(torch.float32)
    p.grad.fill_(value)
    with perturbed([p], rho=0.01, diagnose=True) as perturbation:
        pass
    assert all(number != number for number in perturbation.realised)


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
    with perturbed([p], 0.01, rounding="stochastic", adaptive=adaptive, diagnose=True) as seen:
        moved = p.detach().double() - origin.double()
    assert torch.equal(p.detach(), origin)
    projection = moved @ meant / (meant @ meant)
    noise = 6 / seen.realised.length**-1 / len(g) ** 0.5  # six standard errors
    assert abs(projection.item() - 1) < noise
    assert seen.realised.length * seen.realised.cosine == pytest.approx(projection.item(), rel=1e-3)


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
    """Entry i of the k-th call gets hash(hash(seed + k c) mod 2^18 + i), in the bits dropped."""
    seed = torch.tensor(3.7)
    noise, (start,) = Noise(seed), bits(seed)
    for call, size in ((1, 50), (2, 2**18), (3, 2**18 + 1), (4, 50)):
        values = torch.randn(size)
        given = bits(values)
        found = bits(noise.rounded(values.clone(), dtype))
        first = hashed(start + call * 0x61C88647 % 2**31) % 2**18
        for i in {*range(min(size, 50)), size - 1}:
            carried = given[i] + (hashed(first + i) & (2**dropped - 1))
            assert found[i] == carried >> dropped << dropped


@pytest.mark.parametrize("kind", ["sparse", "strided"])
def test_realised_takes_directions_of_any_layout(kind: str) -> None:
    p = nn.Parameter(torch.ones(6, 4).t() if kind == "strided" else torch.ones(4, 6))
    g = torch.zeros(4, 6)
    g[2] = 3.0
    p.grad = g.to_sparse(1) if kind == "sparse" else g
    with perturbed([p], 0.5, diagnose=True) as perturbation:
        pass
    assert perturbation.realised.length == pytest.approx(1.0, abs=1e-6)
    assert perturbation.realised.cosine == pytest.approx(1.0, abs=1e-6)
    assert perturbation.realised.share == 1.0


def drawn(size: int, dtype: torch.dtype, scale: float) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (scale * torch.randn(size, generator=generator, dtype=torch.float64)).to(dtype)


@NARROW
@pytest.mark.parametrize("size", [7, CACHED + 5])
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
