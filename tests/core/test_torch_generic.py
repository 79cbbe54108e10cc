"""torch's own generic optimizer checks, restated for optimizers around torch's optimizers.

The inputs are those torch tests itself with (`OptimizerInfo`); the checks are those of its
`test_optim.py`, which no wheel ships. What does not apply here:

- errors of bad arguments: the base raises them in its own constructor, before it is wrapped;
- groups, schedules and checkpoints, which are the base's too: `test_contract.py` and its sibling;
- `differentiable=True`: a perturbed point is left by a copy, which has no gradient;
- anything on two devices, `capturable`, peak memory of foreach, fused on CUDA: no accelerator here
  (a loss scale that overflowed is in `test_surroundings.py`);
- the default implementation (foreach or not) is chosen by the base; it sees the same tensors.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import SGD, AdamW

from tests.core.table import assert_same
from torch_alm import SAM, ReverseSAM

common = pytest.importorskip(
    "torch.testing._internal.common_optimizers", reason="it needs the package `expecttest`"
)

RHO = 1e-3


class Case(NamedTuple):
    """A wrapper, and one configuration of what it wraps."""

    wrapper: Any
    base: Any
    kwargs: dict[str, Any]

    def make(self, params: Any, **more: Any) -> Any:
        kwargs = copy.deepcopy(self.kwargs) | more
        return self.wrapper(self.base(params, **kwargs), rho=RHO)


def cases() -> dict[str, Case]:
    infos = {info.optim_cls: info for info in common.optim_db}
    found = {}
    for wrapper, base in ((SAM, SGD), (ReverseSAM, AdamW)):
        for given in infos[base].optim_inputs_func(device="cpu"):
            name = f"{wrapper.__name__}({base.__name__}) {given.desc}"
            found[name] = Case(wrapper, base, given.kwargs)
    return found


CASES = cases()
every = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
first = pytest.mark.parametrize(
    "case",
    [case for case in CASES.values() if not case.kwargs],
    ids=[name for name, case in CASES.items() if not case.kwargs],
)
implementation = pytest.mark.parametrize("flag", ["foreach", "fused"])


def problem(dtype: torch.dtype = torch.float64) -> tuple[list[Parameter], Callable[[], Tensor]]:
    """A weight, a bias and the squared error of a linear map."""
    generator = torch.Generator().manual_seed(0)
    weight, bias, x = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        for shape in ((10, 5), (10,), (5,))
    )
    params = [Parameter(weight), Parameter(bias)]
    return params, lambda: (params[0].mv(x) + params[1]).square().sum()


def strided(tensor: Tensor) -> Tensor:
    """Equal values, every other one in memory."""
    return torch.stack([tensor] * 2, -1)[..., 0]


def closure_of(optimizer: Any, objective: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = objective()
        loss.backward()
        return loss

    return closure


def step(optimizer: Any, objective: Callable[[], Tensor]) -> None:
    optimizer.zero_grad()
    optimizer.backward(objective)
    optimizer.step()


@pytest.mark.parametrize("contiguous", [True, False], ids=["contiguous", "strided"])
@every
def test_goes_the_right_way(case: Case, contiguous: bool) -> None:
    (weight, bias), _ = problem()
    x = torch.randn(5, dtype=torch.float64)
    if not contiguous:
        weight, bias = (Parameter(strided(p.detach())) for p in (weight, bias))
        assert not weight.is_contiguous() and not bias.is_contiguous()
    optimizer = case.make([weight, bias])
    closure = closure_of(optimizer, lambda: (weight.mv(x) + bias).square().sum())
    before = closure().item()
    for _ in range(20):
        optimizer.step(closure)
    assert (closure().item() > before) == case.kwargs.get("maximize", False)
    assert closure().item() != before


@pytest.mark.filterwarnings("ignore:.*with a gradient taken at theta is a plain:UserWarning")
@every
def test_does_nothing_without_gradients(case: Case) -> None:
    params, _ = problem()
    optimizer = case.make(params)
    before = [p.detach().clone() for p in params]
    optimizer.step()
    assert_same([p.detach() for p in params], before)
    with optimizer.perturbed():
        pass
    optimizer.step()
    assert_same([p.detach() for p in params], before)
    assert not optimizer.state


@every
def test_does_nothing_for_zero_gradients_without_decay(case: Case) -> None:
    params, objective = problem()
    optimizer = case.make(params, weight_decay=0.0)
    before = [p.detach().clone() for p in params]
    for _ in range(5):
        step(optimizer, lambda: 0.0 * objective())
    assert_same([p.detach() for p in params], before)


@every
def test_a_complex_parameter_is_two_real_ones(case: Case) -> None:
    torch.manual_seed(0)
    z = Parameter(torch.randn(10, 5, dtype=torch.complex128))
    real = Parameter(torch.view_as_real(z.detach()).clone())
    target = torch.randn(10, 5, dtype=torch.complex128)
    pair = [case.make([z]), case.make([real])]
    for _ in range(3):
        step(pair[0], lambda: (z - target).abs().square().sum())
        step(pair[1], lambda: (real - torch.view_as_real(target)).square().sum())
        found = torch.view_as_real(z.detach())
        torch.testing.assert_close(found, real.detach(), rtol=0, atol=1e-13)


@implementation
@every
def test_every_implementation_matches_the_loop(case: Case, flag: str) -> None:
    if flag == "fused" and any(isinstance(v, Tensor) for v in case.kwargs.values()):
        flag = "foreach"  # torch refuses fused with a tensor for lr off its device
    finals = []
    for kwargs in ({flag: True}, {flag: False, "foreach": False}):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 3), nn.Sigmoid(), nn.Linear(3, 1)).double()
        empty = Parameter(torch.empty(0, dtype=torch.float64))
        optimizer = case.make([*model.parameters(), empty], **kwargs)
        for i in range(7):
            x = torch.ones(2, dtype=torch.float64)
            model[0].requires_grad_(i != 3)
            step(optimizer, lambda m=model, x=x, e=empty: m(x).square().sum() + e.sum())
        finals.append(([p.detach() for p in model.parameters()], optimizer.state_dict()["state"]))
    torch.testing.assert_close(*finals, rtol=0, atol=1e-13)


@every
def test_mixed_dtypes(case: Case) -> None:
    torch.manual_seed(0)
    dtypes = (torch.float64, torch.float32, torch.bfloat16)
    params = [Parameter(torch.randn(2, 3).to(dtype)) for dtype in dtypes]
    optimizer = case.make(params, foreach=True)
    step(optimizer, lambda: sum((p.double().square().sum() for p in params), torch.zeros(())))
    assert [p.dtype for p in params] == list(dtypes)
    assert all(p.isfinite().all() for p in params)


@first
def test_step_hooks_may_replace_arguments(case: Case) -> None:
    params, objective = problem()
    optimizer = case.make(params)
    before = objective().detach()
    closure = closure_of(optimizer, objective)
    optimizer.register_step_pre_hook(lambda _, args, kwargs: ((args[0], closure), kwargs))
    assert torch.equal(optimizer.step(None), before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@every
def test_returns_what_the_closure_returned(case: Case, dtype: torch.dtype) -> None:
    params, objective = problem(dtype)
    optimizer = case.make(params)
    clean = objective().detach()
    for convert in (lambda loss: loss, Tensor.item, lambda _: None):
        start = copy.deepcopy([p.detach() for p in params])
        closure = closure_of(optimizer, objective)
        returned = optimizer.step(lambda f=closure, c=convert: c(f()))
        with torch.no_grad():
            for p, value in zip(params, start, strict=True):
                p.copy_(value)
        wanted = convert(clean)
        assert type(returned) is type(wanted)
        if wanted is not None:
            torch.testing.assert_close(returned, wanted, check_dtype=True, rtol=0, atol=0)
    optimizer.backward(objective)
    assert optimizer.step() is None
