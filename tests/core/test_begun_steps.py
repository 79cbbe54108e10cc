"""A step that was begun and is not taken, and one that was never begun."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))


def plain(p: nn.Parameter) -> DualOptimizer:
    return DualOptimizer(SGD([p], 0.1), SGD([p], 0.1), ALMConstraint(None, alpha=5.0, mu=1.0))


def saul(p: nn.Parameter) -> DualOptimizer:
    sides = SAM(SGD([p], 0.1)), ReverseSAM(SGD([p], 0.1))
    return DualOptimizer(*sides, ALMConstraint(None, alpha=5.0, mu=1.0))


MAKES = pytest.mark.parametrize("make", [plain, saul])
Make = Callable[[nn.Parameter], DualOptimizer]


def backward(p: nn.Parameter, optimizer: DualOptimizer) -> None:
    optimizer.backward(retain=lambda: p.square().sum(), forget=lambda: p.sin().sum())


def whole_step(p: nn.Parameter, optimizer: DualOptimizer) -> Tensor:
    backward(p, optimizer)
    optimizer.step()
    optimizer.zero_grad()
    return p.detach().clone()


def saved(p: nn.Parameter, optimizer: DualOptimizer) -> tuple[Tensor, dict[str, Any]]:
    return p.detach().clone(), copy.deepcopy(optimizer.state_dict())


@torch.no_grad()
def go_back(p: nn.Parameter, optimizer: DualOptimizer, then: tuple[Tensor, Any]) -> None:
    p.copy_(then[0])
    optimizer.load_state_dict(then[1])


@MAKES
def test_after_a_checkpoint_there_is_no_step_to_take(make: Make) -> None:
    p = parameter()
    optimizer = make(p)
    whole_step(p, optimizer)
    then = saved(p, optimizer)
    backward(p, optimizer)
    go_back(p, optimizer, then)
    p.grad = None
    with pytest.warns(UserWarning, match="without a backward"):
        optimizer.step()
    assert torch.equal(p, then[0])
    assert optimizer.constraint.metrics()["steps"] == 1


@MAKES
@pytest.mark.filterwarnings("ignore:DualOptimizer.step")
def test_schedules_of_both_sides_go_on_after_a_step_without_a_backward(make: Make) -> None:
    p = parameter()
    optimizer = make(p)
    sides = (optimizer.retain, optimizer.forget)
    schedulers = [LambdaLR(side, lambda epoch: 0.5**epoch) for side in sides]
    optimizer.step()
    for scheduler in schedulers:
        scheduler.step()  # torch warns of a scheduler that goes before its optimizer
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.05]


@pytest.mark.filterwarnings("ignore:SAM.step")
def test_under_a_scaler_a_step_without_any_gradient_moves_nothing() -> None:
    p, other = parameter(), parameter()
    optimizer, trained = SAM(SGD([p], 0.1)), SGD([other], 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(other.square().sum()).backward()
    for each in (trained, optimizer):
        scaler.step(each)
    scaler.update()
    assert torch.equal(p, parameter()) and not torch.equal(other, p)

    optimizer.backward(lambda: p.sum())  # and the scaler has its loan back
    optimizer.step()
    torch.testing.assert_close(p.detach(), parameter().detach() - 0.1, rtol=0, atol=1e-15)
