"""theta goes to the right point of the ball and comes back, bit for bit."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from torch_alm import SAM, ReverseSAM, perturbed
from torch_alm._optim import gradients

BOTH = pytest.mark.parametrize(("wrapper", "sign"), [(SAM, +1), (ReverseSAM, -1)])
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64]


def assert_theta_unchanged(theta: list[Tensor], before: list[Tensor]) -> None:
    for p, origin in zip(theta, before, strict=True):
        assert torch.equal(p.detach(), origin)


def parameters(dtype: torch.dtype = torch.float64) -> list[nn.Parameter]:
    """Odd shapes, one larger than a block, one not contiguous."""
    torch.manual_seed(0)
    shapes = [(3, 5), (), (0, 4), (70_001,), (6, 7)]
    theta = [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]
    theta[-1] = nn.Parameter(torch.randn(7, 6, dtype=dtype).t())
    for p in theta:
        p.grad = torch.randn_like(p)
    return theta


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def test_one_object_is_used_again_and_not_within_itself() -> None:
    theta, rates = parameters(), [0.1, 0.2]
    block = perturbed(theta, rho=1.0)
    for rate in rates:
        before, g = [p.detach().clone() for p in theta], [p.grad for p in theta]
        with block:
            with pytest.raises(RuntimeError, match=r"entered again.*a second `perturbed"), block:
                pass
            assert not torch.equal(theta[0].detach(), before[0])
        assert_theta_unchanged(theta, before)
        for p, direction in zip(theta, g, strict=True):
            p.grad = direction
        SGD(theta, lr=rate).step()


def test_a_step_that_would_be_undone_is_refused() -> None:
    theta, other = parameters(), nn.Parameter(torch.ones(2))
    other.grad = torch.ones(2)
    before = [p.detach().clone() for p in theta]
    with pytest.raises(RuntimeError, match=r"SGD.step\(\) inside.* undone"), perturbed(theta, 1.0):
        SGD([other], lr=0.1).step()  # of weights that nobody brings back
        theta[0].grad = torch.ones_like(theta[0])
        SGD(theta[:1], lr=0.1).step()
    assert_theta_unchanged(theta, before)
    torch.testing.assert_close(other.detach(), torch.full((2,), 0.9))
    SGD(theta, lr=0.1).step()
    assert not torch.equal(theta[0].detach(), before[0])


@BOTH
@pytest.mark.parametrize("adaptive", [False, True])
def test_visits_the_boundary_of_the_ball_in_the_right_direction(
    wrapper: type, sign: int, adaptive: bool
) -> None:
    theta = parameters()
    origin, g = flat(theta), flat([p.grad for p in theta])
    optimizer = wrapper(SGD(theta, lr=1.0), rho=0.25, adaptive=adaptive)
    with optimizer.perturbed() as perturbation:
        delta = flat(theta) - origin
    unit = origin.abs() if adaptive else torch.ones_like(origin)
    expected = sign * 0.25 * unit.square() * g / (unit * g).norm()
    torch.testing.assert_close(delta, expected, rtol=0, atol=1e-14)
    assert math.isclose((delta / unit).norm().item(), 0.25, rel_tol=1e-9)
    assert math.isclose(perturbation.norm.item(), (unit * g).norm().item(), rel_tol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fails", [False, True])
def test_theta_returns_bit_for_bit_into_the_same_storage(dtype: torch.dtype, fails: bool) -> None:
    theta = parameters(dtype)
    before, places = [p.detach().clone() for p in theta], [p.data_ptr() for p in theta]

    def inside() -> None:
        with perturbed(theta, rho=30.0):
            assert not torch.equal(theta[0].detach(), before[0])
            theta[0].grad = torch.ones_like(theta[0])
            with torch.no_grad():
                theta[3].mul_(2)  # whatever the block does to the weights is undone too
            if fails:
                raise ZeroDivisionError

    if fails:
        with pytest.raises(ZeroDivisionError):
            inside()
    else:
        inside()
    assert_theta_unchanged(theta, before)
    assert [p.data_ptr() for p in theta] == places
    assert theta[0].grad is not None, "the block's gradient stays"
    assert all(p.grad is None for p in theta[1:])


def test_a_nested_perturbation_returns_to_the_outer_one() -> None:
    theta = parameters()
    optimizer = SAM(SGD(theta, lr=1.0), rho=1.0)
    before = [p.detach().clone() for p in theta]
    for _ in range(2):  # the second time, memory is kept from the first
        with optimizer.perturbed():
            outer = [p.detach().clone() for p in theta]
            for p in theta:
                p.grad = torch.randn_like(p)
            with optimizer.perturbed():
                assert not torch.equal(theta[0].detach(), outer[0])
            assert_theta_unchanged(theta, outer)
        assert_theta_unchanged(theta, before)
        for p in theta:
            p.grad = torch.randn_like(p)


@pytest.mark.parametrize("host", [("cpu",), ()], ids=["host", "device"])
@pytest.mark.parametrize("value", [0.0, math.inf, math.nan])
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_zero_or_non_finite_gradient_moves_nothing(
    value: float, adaptive: bool, dtype: torch.dtype, host: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "HOST", host)
    theta = [nn.Parameter(torch.tensor([1.0, -2.0, 0.0], dtype=dtype)), nn.Parameter(torch.ones(2))]
    before = [p.detach().clone() for p in theta]
    theta[0].grad, theta[1].grad = torch.zeros(3, dtype=dtype), torch.tensor([0.0, value])
    with perturbed(theta, rho=1.0, adaptive=adaptive, eps=0.0):
        assert_theta_unchanged(theta, before)
        assert all(p.grad is None for p in theta)
    with pytest.warns(UserWarning, match="no parameter has a gradient"), perturbed(theta, rho=1.0):
        assert_theta_unchanged(theta, before)


def test_the_norm_is_joint_over_dtypes() -> None:
    single, double = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1).double())
    single.grad, double.grad = torch.full_like(single, 3.0), torch.full_like(double, 4.0)
    with perturbed([single, double], rho=1.0):
        assert single.item() == pytest.approx(0.6) and double.item() == pytest.approx(0.8)
    single.grad, double.grad = torch.full_like(single, 3.0), torch.full_like(double, 4.0 + 1e-9)
    with perturbed([single, double], rho=1.0) as found:
        assert found.norm.item() == pytest.approx(5.0 + 0.8e-9, rel=1e-12), "in the widest of them"


def test_a_groups_rho_is_read_and_zero_leaves_it_alone() -> None:
    near, far, fixed = (nn.Parameter(torch.zeros(1)) for _ in range(3))
    base = SGD([{"params": [near]}, {"params": [far], "rho": 2.0}, {"params": [fixed], "rho": 0}])
    groups = [dict(group) for group in base.param_groups]
    for p, g in ((near, 3.0), (far, 4.0), (fixed, 5.0)):
        p.grad = torch.full_like(p, g)
    with SAM(base, rho=1.0).perturbed():
        assert near.item() == pytest.approx(0.6)
        assert far.item() == pytest.approx(1.6)
        assert fixed.item() == 0
        assert fixed.grad is None
    assert base.param_groups == groups, "the wrapper writes nothing into its base"


@pytest.mark.parametrize("as_group", [False, True])
def test_the_sign_says_whether_to_climb_or_to_descend(as_group: bool) -> None:
    p = nn.Parameter(torch.zeros(1))
    for sign in (1, -1):
        p.grad = torch.ones(1)
        with perturbed([{"params": [p]}] if as_group else [p], rho=0.5, sign=sign):
            assert p.item() == 0.5 * sign


def test_a_parameter_listed_twice_moves_once() -> None:
    p = nn.Parameter(torch.zeros(1))
    p.grad = torch.ones(1)
    with perturbed([p, p], rho=1.0):
        assert p.item() == 1.0


@pytest.mark.parametrize("rho", [-0.1, math.nan, math.inf])
def test_a_radius_that_is_none_is_refused_and_named(rho: float) -> None:
    theta = parameters()
    base = AdamW(theta)
    before, grads = [p.detach().clone() for p in theta], [p.grad for p in theta]
    for refused in (
        lambda: SAM(base, rho=rho),
        lambda: SAM(base, eps=rho),
        lambda: perturbed(theta, rho).__enter__(),
        lambda: perturbed([{"params": theta, "rho": rho}], 0.1).__enter__(),
    ):
        with pytest.raises(ValueError, match=r"(rho|eps) is .*ball"):
            refused()
    with pytest.raises(ValueError, match=r"rho is -0.05.*`sign=-1`, to descend"):
        perturbed(theta, -0.05)
    with pytest.raises(ValueError, match="sign is 2"):
        perturbed(theta, 0.1, sign=2).__enter__()
    assert_theta_unchanged(theta, before)
    assert all(p.grad is g for p, g in zip(theta, grads, strict=True)), "gradients are kept"


def test_a_radius_that_requires_a_gradient_is_the_number_it_is() -> None:
    theta = nn.Parameter(torch.zeros(4))
    theta.grad = torch.ones(4)
    radius = torch.tensor(0.5, requires_grad=True)
    with perturbed([{"params": [theta], "rho": radius}], rho=radius):
        torch.testing.assert_close(theta.detach(), torch.full((4,), 0.25))
