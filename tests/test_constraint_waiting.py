"""A constraint that is never stepped or never measured says so, once; accumulation does not."""

import copy
import pickle
import warnings
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, AdamW, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks as hooks_of_all_optimizers

from torch_alm import SAM, ALMConstraint, DualOptimizer

WITHIN = 20


class Loop:
    """A small model, a constraint on its output, and an optimizer."""

    def __init__(self, make: Callable[[Any], Any] = lambda p: SGD(p, lr=0.01)) -> None:
        self.model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
        self.optimizer = make(list(self.model.parameters()))
        self.constraint = ALMConstraint(self.measure, alpha=1.0, mu=0.5)

    def measure(self) -> Tensor:
        return self.model(torch.ones(1, 2)).mean()

    def loss(self) -> Tensor:
        return self.measure().square() + self.constraint()

    def accumulate(self, parts: int) -> None:
        for _ in range(parts):
            if isinstance(self.optimizer, SAM):
                self.optimizer.backward(self.loss, weight=1 / parts)
            elif isinstance(self.optimizer, DualOptimizer):
                self.optimizer.backward(retain=self.loss, forget=self.measure, weight=1 / parts)
            else:
                (self.loss() / parts).backward()


def said(work: Callable[[], object], times: int) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(times):
            work()
    return [str(each.message) for each in found]


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: SGD(p, lr=0.01),
    "AdamW, fused": lambda p: AdamW(p, lr=0.01, fused=True),
    "AdamW, foreach": lambda p: AdamW(p, lr=0.01, foreach=True),
    "SAM": lambda p: SAM(SGD(p, lr=0.01), rho=0.05),
    "Dual": lambda p: DualOptimizer(SGD(p, lr=0.01), SGD(p, lr=0.01)),
    "Dual of SAM": lambda p: DualOptimizer(SAM(SGD(p, lr=0.01)), SGD(p, lr=0.01)),
}
every = pytest.mark.parametrize("name", OPTIMIZERS)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("set_to_none", [True, False])
@every
def test_a_constraint_that_is_never_stepped_says_so_once(
    name: str, set_to_none: bool, parts: int
) -> None:
    loop = Loop(OPTIMIZERS[name])

    def step() -> None:
        loop.accumulate(parts)
        loop.optimizer.step()
        loop.optimizer.zero_grad(set_to_none)

    (sentence,) = said(step, WITHIN)
    assert "constraint.step()" in sentence and "constraint.attach(optimizer)" in sentence
    assert said(step, WITHIN) == []


@pytest.mark.parametrize("attached", [True, False])
@every
def test_64_micro_batches_are_not_taken_for_it(name: str, attached: bool) -> None:
    loop = Loop(OPTIMIZERS[name])
    if attached:
        loop.constraint.attach(loop.optimizer)

    def step() -> None:
        loop.accumulate(64)
        loop.optimizer.step()
        if not attached:
            loop.constraint.step()
        loop.optimizer.zero_grad()

    assert said(step, 1) == [] and loop.constraint.metrics()["steps"] == 1


def test_gradients_taken_apart_over_micro_batches_are_not_either() -> None:
    loop = Loop()
    loop.constraint.attach(loop.optimizer)

    def step() -> None:
        for _ in range(64):
            for part in (loop.constraint, loop.measure):
                loop.optimizer.zero_grad()
                part().backward()
        loop.optimizer.step()

    assert said(step, 3) == [] and loop.constraint.metrics()["steps"] == 3


def test_a_closure_of_an_attached_optimizer_may_measure_as_often_as_it_likes() -> None:
    settings = {"lr": 1e-3, "max_iter": 60, "tolerance_grad": 0.0, "tolerance_change": 0.0}
    loop = Loop(lambda p: LBFGS(p, **settings))
    loop.constraint.attach(loop.optimizer)
    calls = []

    def closure() -> Tensor:
        calls.append(1)
        loop.optimizer.zero_grad()
        loss = loop.loss()
        loss.backward()
        return loss

    assert said(lambda: loop.optimizer.step(closure), 1) == [] and len(calls) > WITHIN


def test_numbers_that_pile_up_where_nothing_can_be_watched_say_so_late() -> None:
    c = ALMConstraint(None, alpha=1.0, mu=0.5)
    assert said(lambda: c.observe(0.0), 500) == []
    (sentence,) = said(lambda: c.observe(0.0), 500)
    assert "512 measurements" in sentence
    stepped = ALMConstraint(None, alpha=1.0, mu=0.5)
    stepped.observe(0.0)
    stepped.step()
    assert said(lambda: stepped.observe(0.0), 1000) == [], "it is stepped, however rarely"


@pytest.mark.parametrize("number", [Tensor.item, Tensor.detach])
def test_numbers_without_a_graph_say_so_as_soon_as_optimizers_step(number: Any) -> None:
    loop = Loop()

    def step(parts: int = 1) -> None:
        for _ in range(parts):
            value = loop.measure()
            loop.constraint.observe(number(value))
            value.backward()
        loop.optimizer.step()

    assert said(lambda: step(64), 1) == [], "micro-batches"
    (sentence,) = said(step, WITHIN)
    assert "constraint.step()" in sentence
    assert said(step, WITHIN) == []


def test_optimizers_of_another_thread_are_none_of_ours() -> None:
    loop, other = Loop(), Loop()

    def step() -> None:
        loop.constraint.observe(0.0)
        elsewhere = Thread(target=other.optimizer.step)
        elsewhere.start()
        elsewhere.join()

    assert said(step, 2 * WITHIN) == []


@pytest.mark.parametrize("ends", ["by a step", "by a warning", "with the constraint"])
def test_torch_is_left_without_a_hook(ends: str) -> None:
    others = set(hooks_of_all_optimizers)  # of constraints that wait to be collected, too
    loop = Loop()
    loop.constraint.observe(0.0)
    (hook,) = set(hooks_of_all_optimizers) - others
    if ends == "by a step":
        loop.constraint.step()
    elif ends == "by a warning":
        said(lambda: loop.constraint.observe(0.0), 600)
    else:
        loop.constraint = None  # type: ignore[assignment]
    assert hook not in hooks_of_all_optimizers


class TwoSteps(Optimizer):
    """The SAM that is copied most: the loop calls both steps, and nobody calls `step`."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.base_optimizer = SGD(self.param_groups, lr=lr)

    @torch.no_grad()
    def first_step(self) -> None:
        for p in self.param_groups[0]["params"]:
            self.state[p]["old_p"] = p.data.clone()
            p.add_(p.grad, alpha=0.1)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for p in self.param_groups[0]["params"]:
            p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        self.zero_grad()

    def step(self, closure: Any = None) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("how", ["call", "observe"])
def test_attached_to_an_optimizer_whose_step_is_never_called_it_says_so(how: str) -> None:
    loop = Loop(lambda p: TwoSteps(p, lr=0.01))
    loop.constraint.attach(loop.optimizer)

    def step() -> None:
        for move in (loop.optimizer.first_step, loop.optimizer.second_step):
            value = loop.measure()
            if how == "call":
                value = value + loop.constraint()
            else:
                loop.constraint.observe(value.item())
            value.backward()
            move()

    (sentence,) = said(step, WITHIN)
    assert "attached to TwoSteps, whose `step()` was never called" in sentence
    right = Loop(lambda p: TwoSteps(p, lr=0.01))
    right.constraint.attach(right.optimizer.base_optimizer)
    loop.optimizer, loop.constraint, loop.model = right.optimizer, right.constraint, right.model
    assert said(step, WITHIN) == [] and right.constraint.metrics()["steps"] == WITHIN


@every
def test_attached_and_never_measured_it_says_so_once(name: str) -> None:
    loop = Loop(OPTIMIZERS[name])
    loop.constraint.attach(loop.optimizer)
    loop.loss = loop.measure

    def step() -> None:
        loop.accumulate(1)
        loop.optimizer.step()
        loop.optimizer.zero_grad()

    (sentence,) = said(step, WITHIN)
    assert f"attached to {type(loop.optimizer).__name__}, which has taken 16 steps" in sentence
    assert said(step, WITHIN) == []


def test_measured_now_and_then_is_measured() -> None:
    loop = Loop()
    loop.constraint.attach(loop.optimizer)
    count = iter(range(1000))

    def step() -> None:
        if next(count) % 15 == 0:
            loop.constraint.observe(0.0)
        loop.optimizer.step()

    assert said(step, 100) == [] and loop.constraint.metrics()["steps"] == 7


@pytest.mark.parametrize(("each", "told"), [(2, False), (3, True), (20, True)])
@pytest.mark.parametrize("mu", ["auto", 0.1])
def test_auto_in_the_loss_of_few_steps_says_so_once(each: int, told: bool, mu: Any) -> None:
    theta = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([theta], lr=0.05)
    constraint = ALMConstraint(lambda: theta.sum(), alpha=-1.0, mu=mu)
    constraint.attach(optimizer)
    count = iter(range(1000))

    def step() -> None:
        loss = (theta + 2).square().sum()
        (loss + constraint() if next(count) % each == 0 else loss).backward()
        optimizer.step()
        optimizer.zero_grad()

    found = said(step, 200)
    assert len(found) == (told and mu == "auto")
    assert all("of its first" in sentence for sentence in found)


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_watches_anew(how: str) -> None:
    loop = Loop()
    loop.constraint.measure = None
    loop.constraint.observe(loop.measure())
    c = copy.deepcopy(loop.constraint)
    c = pickle.loads(pickle.dumps(c)) if how == "pickle" else c

    def step() -> None:
        value = loop.measure()
        c.observe(value)
        value.backward()
        loop.optimizer.step()

    assert len(said(step, WITHIN)) == 1


def test_the_warning_points_at_the_line_that_measured() -> None:
    c = ALMConstraint(None, alpha=1.0, mu=0.5)
    with pytest.warns(UserWarning, match="512 measurements") as found:
        for _ in range(512):
            c.observe(0.0)
    assert found[0].filename == __file__
