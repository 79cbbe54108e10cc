"""Checkpoints: making one changes nothing, names decide what goes where, all optimizers resume."""

import copy
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tests.core import optimizers
from tests.core.optimizers import REPRESENTATIVES
from tests.core.resuming import (
    Distributed,
    backward,
    model,
    notes_ignored,
    resumes,
    saul,
    theta,
    train,
)
from tests.core.table import assert_same
from torch_alm import ALMConstraint, ConstraintGroup, DualOptimizer
from torch_alm.checkpoint import ConstraintState, DualState
from torch_alm.filters import EMA, Mean
from torch_alm.rules import Hold, PenaltyGrowth


class Counting(Optimizer):
    """An optimizer that decays by a constant, draws numbers, and counts where steps leave marks."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        self.steps += 1
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                state.setdefault("total", torch.zeros_like(p)).add_(p.grad)
                noise = torch.randn_like(p) + random.random() + np.random.rand()
                p.mul_(0.9).add_(state["total"] + noise, alpha=-0.01 / group["step"])


def drawn() -> list[Any]:
    """The random state of all there is to draw from."""
    return [torch.get_rng_state(), list(random.getstate()[1]), np.random.get_state()[1].tolist()]


def everything(net: nn.Module, optimizer: DualOptimizer) -> Any:
    """All that a step could have changed, copied."""
    sides = (optimizer.retain.base, optimizer.forget.base)
    kept = ("steps", "_opt_called", "_step_count")
    changing = {
        "theta": list(net.parameters()),
        "gradients": [p.grad for p in net.parameters()],
        "random": drawn(),
        "states": [list(side.state.values()) for side in sides],
        "attributes": [{name: vars(side).get(name) for name in kept} for side in sides],
        "groups": [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups],
    }
    return [[[id(p) for p in side.state] for side in sides], copy.deepcopy(changing)]


@pytest.mark.parametrize("steps", [0, 2])
def test_making_a_checkpoint_changes_nothing_at_all(steps: int) -> None:
    net = model()
    optimizer = saul(lambda net: Counting(net.parameters()), net)
    calls: list[str] = []
    for side in (optimizer.retain.base, optimizer.forget.base):
        side.register_step_post_hook(lambda *_: calls.append("a step"))
        side.register_state_dict_pre_hook(lambda _: None)
        LambdaLR(side, lambda _: 1.0)  # patches `step`
    optimizer.constraint.alpha = -10.0  # never opens
    train(net, optimizer, range(steps))
    backward(net, optimizer, 7)
    calls.clear()
    handle = register_optimizer_step_pre_hook(lambda *_: calls.append("any step"))
    before = everything(net, optimizer)
    assert not optimizer.forget.state
    try:
        saved = DualState(net, optimizer).state_dict()
    finally:
        handle.remove()
    assert_same(everything(net, optimizer), before)
    assert not calls
    assert {*saved["forget"]["state"]} == {name for name, _ in net.named_parameters()}


@pytest.mark.parametrize("base", [Counting, partial(SGD, lr=0.1), partial(AdamW, lr=0.1)])
def test_loading_touches_no_weight_gradient_or_random_state(base: Any) -> None:
    net, other = model(), model()
    optimizer, loaded = (saul(lambda net: base(net.parameters()), each) for each in (net, other))
    train(net, optimizer, range(3))
    saved = copy.deepcopy(DualState(net, optimizer).state_dict())
    backward(other, loaded, 7)
    before = copy.deepcopy([theta(other), [p.grad for p in other.parameters()]])
    at = drawn()
    DualState(other, loaded).load_state_dict(saved)
    assert_same([theta(other), [p.grad for p in other.parameters()]], before)
    assert_same(drawn(), at)
    assert_same(loaded.state_dict(), optimizer.state_dict())


def two_groups(net: nn.Module, order: int, base: Any) -> DualOptimizer:
    """A group for each layer, in either order, with settings of their own."""

    def side() -> Optimizer:
        groups = [
            {"params": net[0].parameters(), "lr": 0.1, "only_here": "a"},
            {"params": net[2].parameters(), "lr": 0.01},
        ]
        return base(groups[::order])

    return DualOptimizer(side(), side())


@pytest.mark.parametrize("base", [partial(SGD, lr=1.0), partial(AdamW, lr=1.0)])
@pytest.mark.parametrize("tensor_rates", [False, True])
def test_groups_in_another_order_keep_what_is_theirs(base: Any, tensor_rates: bool) -> None:
    net, other = model(), model()
    first, second = two_groups(net, +1, base), two_groups(other, -1, base)
    if tensor_rates:
        for group in (*first.param_groups, *second.param_groups):
            group["lr"] = torch.tensor(group["lr"])
    for step in range(2):  # the last layer never takes a step
        first.backward(
            retain=lambda s=step: net[0](torch.ones(4) * s).sum(),
            forget=lambda s=step: net[0](torch.ones(4) * s).square().sum(),
        )
        first.step()
        first.zero_grad()
    saved = copy.deepcopy(DualState(net, first).state_dict())
    DualState(other, second).load_state_dict(saved)
    assert [group["lr"] for group in second.retain.param_groups] == [
        group["lr"] for group in first.retain.param_groups[::-1]
    ]
    assert ["only_here" in group for group in second.retain.param_groups] == [False, True]
    for mine, its in ((first.retain, second.retain), (first.forget, second.forget)):
        for p, q in zip(net.parameters(), other.parameters(), strict=True):
            assert (p in mine.state) == (q in its.state)
            assert_same(its.state.get(q), mine.state.get(p))
    assert not second.retain.state.get(other[2].weight)


def test_groups_that_would_mix_are_refused_and_nothing_is_loaded() -> None:
    net, other = model(), model()
    first = two_groups(net, +1, partial(AdamW, lr=1.0))
    second = saul(lambda net: AdamW(net.parameters(), lr=0.3), other)
    saved = DualState(net, first).state_dict()
    with pytest.raises(ValueError, match="share a group here and did not"):
        DualState(other, second).load_state_dict(saved)
    assert all(group["lr"] == 0.3 for group in second.param_groups)


def test_an_optimizer_that_cannot_be_asked_says_so() -> None:
    class Picky(SGD):
        def step(self, closure: Any = None) -> None:
            raise ArithmeticError("not with a gradient of 0")

    net = model()
    optimizer = DualOptimizer(SGD(net.parameters(), lr=0.1), Picky(net.parameters(), lr=0.1))
    with pytest.raises(RuntimeError, match=r"a copy of Picky could not step .* Did you mean"):
        DualState(net, optimizer).state_dict()


def test_state_that_a_first_step_does_not_make_is_never_lost_without_a_word(tmp_path: Path) -> None:
    class Late(SGD):
        def step(self, closure: Any = None) -> None:
            super().step()
            for state in self.state.values():
                state["late" if "early" in state else "early"] = torch.ones(())

    def late(net: nn.Module) -> DualOptimizer:
        return DualOptimizer(*(Late(net.parameters(), lr=0.1, momentum=0.9) for _ in range(2)))

    net, other = model(), model()
    optimizer, fresh = late(net), late(other)
    train(net, optimizer, range(2))
    saved = Distributed(net, optimizer, str(tmp_path))
    with pytest.raises(ValueError, match=r"\['late'\] of '0.weight' was saved and not read"):
        saved.load(other, fresh)
    assert not fresh.retain.state and not fresh.forget.state


def test_an_optimizer_around_another_is_refused_and_neither_steps() -> None:
    class Around(SGD):
        def step(self, closure: Any = None) -> None:
            self.inner.step()

    net = model()
    optimizer = DualOptimizer(*(Around(net.parameters(), lr=0.1) for _ in range(2)))
    for side in (optimizer.retain, optimizer.forget):
        side.inner = SGD(net.parameters(), lr=1.0)
    before = theta(net)
    with pytest.raises(RuntimeError, match=r"holds another optimizer"):
        DualState(net, optimizer).state_dict()
    assert_same(theta(net), before)


@pytest.mark.parametrize("frozen", [False, True])
def test_layers_that_were_frozen_on_the_way_keep_their_moments(
    frozen: bool, tmp_path: Path
) -> None:
    """Both ways of saving say the same, also to a run that begins with these layers frozen."""
    net, other = model(), model()
    optimizer, loaded = (saul(lambda n: AdamW(n.parameters(), lr=0.1), n) for n in (net, other))
    train(net, optimizer, range(3))
    for each, is_now in ((net, True), (other, frozen)):
        next(each.parameters()).requires_grad_(not is_now)
    train(net, optimizer, range(3, 5))
    Distributed(net, optimizer, str(tmp_path)).load(other, loaded)
    assert_same(loaded.state_dict(), optimizer.state_dict())


def mean(values: Tensor) -> Tensor:
    return values.mean()


def each(values: Tensor) -> Tensor:
    return values


KINDS: dict[str, Any] = {
    "plain": lambda: ALMConstraint(mean, alpha=0.6, mu=1.0, multiplier=0.5),
    "of tensors": lambda: ALMConstraint(each, alpha=torch.tensor([0.6, 0.2]), mu=1.0),
    "auto": lambda: ALMConstraint(mean, alpha=0.6, mu="auto"),
    "auto of tensors": lambda: ALMConstraint(each, alpha=torch.tensor([0.6, 0.2]), mu="auto"),
    "with all it may keep": lambda: ALMConstraint(
        each,
        alpha=torch.tensor([0.6, 0.2]),
        mu=1.0,
        every=2,
        filter=Mean(3),
        rules=[Hold(0.5), PenaltyGrowth(2.0, limit=8.0)],
    ),
    "a group": lambda: ConstraintGroup(
        {
            "a": ALMConstraint(mean, 0.6, 1.0),
            "b": ALMConstraint(torch.max, 0.1, 1.0, filter=EMA(0.5)),
        }
    ),
}


def in_the_loss(net: nn.Module, optimizer: Optimizer, constraint: Any, steps: range) -> list[Any]:
    """Train with the constraint in the loss; what it said at each step."""
    said = []
    for step in steps:
        outputs = net(torch.ones(2, 4) * step)
        (outputs.abs().mean() + constraint(outputs.square().mean(0)[:2])).backward()
        optimizer.step()
        optimizer.zero_grad()
        said.append(constraint.metrics())
    return said


@pytest.mark.parametrize("kind", KINDS)
def test_a_constraint_in_the_loss_goes_on_from_a_distributed_checkpoint(
    kind: str, tmp_path: Path
) -> None:
    net, constraint = model(), KINDS[kind]()
    optimizer = SGD(net.parameters(), lr=0.1)
    constraint.attach(optimizer)
    in_the_loss(net, optimizer, constraint, range(5))
    other, fresh = model(), KINDS[kind]()
    other.load_state_dict(net.state_dict())
    second = SGD(other.parameters(), lr=0.1)
    fresh.attach(second)
    with notes_ignored():
        dcp.save({"constraint": ConstraintState(constraint)}, checkpoint_id=tmp_path)
        dcp.load({"constraint": ConstraintState(fresh)}, checkpoint_id=tmp_path)
    assert_same(fresh.state_dict(), constraint.state_dict())
    went_on = in_the_loss(net, optimizer, constraint, range(5, 10))
    assert_same(in_the_loss(other, second, fresh, range(5, 10)), went_on)
    assert torch.equal(theta(other), theta(net))


def test_another_constraints_distributed_checkpoint_is_refused(tmp_path: Path) -> None:
    constraint, fresh = KINDS["plain"](), KINDS["of tensors"]()
    before = copy.deepcopy(fresh.state_dict())
    with notes_ignored(), pytest.raises(Exception, match="Is it another constraint"):
        dcp.save({"constraint": ConstraintState(constraint)}, checkpoint_id=tmp_path)
        dcp.load({"constraint": ConstraintState(fresh)}, checkpoint_id=tmp_path)
    assert_same(fresh.state_dict(), before)


# Their own checkpoints hold objects, or their own format is not torch's.
WITH_CODE = {"pytorch_optimizer.AdaShift", "pytorch_optimizer.GaLore"}
UNNAMED = {"pytorch_optimizer.Lookahead"}

everyone = pytest.mark.parametrize("name", [*optimizers.of_torch(), *REPRESENTATIVES])


@everyone
@pytest.mark.parametrize("wrapper", ["SAM", "SAUL"])
def test_resumes_from_a_file_exactly(name: str, wrapper: str, tmp_path: Path) -> None:
    if not name.startswith("torch."):
        pytest.importorskip("pytorch_optimizer")
    way = "memory" if name in WITH_CODE else "file"
    make = partial(optimizers.make, name)
    assert resumes(make, wrapper, way, str(tmp_path))


@everyone
def test_resumes_from_a_distributed_checkpoint_exactly(name: str, tmp_path: Path) -> None:
    if not name.startswith("torch."):
        pytest.importorskip("pytorch_optimizer")
    if name in UNNAMED:
        pytest.skip("torch.distributed.checkpoint cannot save it, with or without us around it")
    make = partial(optimizers.make, name)
    assert resumes(make, "SAUL", "distributed", str(tmp_path))


@pytest.mark.parametrize("name", ["torch.AdamW", "pytorch_optimizer.AdaBelief"])
@pytest.mark.parametrize("wrapper", ["SAM", "ReverseSAM"])
def test_a_single_wrapper_does_as_its_base_in_torchs_own_functions(
    name: str, wrapper: str, tmp_path: Path
) -> None:
    if not name.startswith("torch."):
        pytest.importorskip("pytorch_optimizer")
    make = partial(optimizers.make, name)
    assert resumes(make, "plain", "distributed", str(tmp_path))
    with pytest.warns(UserWarning, match=r"step\(\) with a gradient taken at theta"):
        assert resumes(make, wrapper, "distributed", str(tmp_path))  # torch steps it to begin with
