"""The ways to move theta agree: in blocks, whole and without waiting, in exchanged memory."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.utils._python_dispatch import TorchDispatchMode

from tests.memory import Memory
from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM, perturbed
from torch_alm._optim import gradients

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.complex64]


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move whole tensors, as on an accelerator, on this CPU."""
    monkeypatch.setattr(gradients, "HOST", ())


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
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=4 * torch.finfo(real).eps, atol=1e-7)


@CASES
def test_whole_tensors_go_where_blocks_go(
    dtype: torch.dtype, settings: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = visit(dtype, **settings)
    monkeypatch.setattr(gradients, "HOST", ())
    assert_close(visit(dtype, **settings), expected, dtype)


class Waits(TorchDispatchMode):
    """A count of the operations that bring a number to the host."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict | None = None
    ) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def two_sided(theta: list[Tensor], alpha: float, base: type = AdamW) -> DualOptimizer:
    return DualOptimizer(
        SAM(base(theta), rho=0.1), ReverseSAM(base(theta), rho=0.1), ALMConstraint(None, alpha, 1)
    )


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize("opens", [True, False])
def test_at_most_two_numbers_per_step_are_read_and_none_to_perturb(opens: bool) -> None:
    """The forget value and, where it is used, the norm of the forget gradient."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x, optimizer = torch.randn(5, 3), two_sided([*net.parameters()], 10.0 if opens else -10.0, SGD)
    objective = lambda: net(x).square().mean()  # noqa: E731
    with Waits() as waits:
        optimizer.retain.backward(objective)
        assert waits.count == 0
        optimizer.backward(retain=objective, forget=lambda: (objective(), 0.0))
        optimizer.step()
    assert (optimizer.constraint.weight > 0) == opens
    assert waits.count <= 1 + opens


def peak_of_a_step(sam: bool) -> float:
    """The most memory a step takes beside weights and moments, in copies of the parameters."""
    net = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(8)))
    theta, x = list(net.parameters()), torch.randn(1, 256)
    plain = DualOptimizer(AdamW(theta), AdamW(theta), ALMConstraint(None, 10.0, 1.0))
    optimizer = two_sided(theta, 10.0) if sam else plain
    objective = lambda: net(x).square().mean()  # noqa: E731

    def step() -> None:
        optimizer.backward(retain=objective, forget=objective)
        optimizer.step()
        optimizer.zero_grad()

    step()
    with Memory() as alive:
        known = {p.untyped_storage()._cdata for p in theta}
        known |= {
            t.untyped_storage()._cdata
            for s in optimizer.state.values()
            for m in s.values()
            for t in m.values()
        }
        alive._known |= known
        step()
    assert optimizer.constraint.weight > 0
    return alive.peak / sum(p.nbytes for p in theta)


@pytest.mark.usefixtures("whole")
def test_perturbing_takes_one_copy_of_the_parameters_more_than_two_gradients() -> None:
    plain, sam = peak_of_a_step(sam=False), peak_of_a_step(sam=True)
    assert 2.0 <= plain < 2.5
    assert 0.5 < sam - plain <= 1.0


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
        assert found.grad_norm == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_of_many_entries_are_exact_in_any_order(dtype: torch.dtype) -> None:
    """One float32 sum over all of these is off by a thousandth."""
    g = torch.randn(10_000, 1000).to(dtype)
    expected = pytest.approx(g.double().norm().item(), rel=1e-5)
    assert gradients.norm([g]).item() == expected
    assert gradients.norm([g.t()]).item() == expected
