"""A perturbation found in every k-th backward: where the others are taken, and what they cost."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM

RHO, LR, STEPS, EPS = 0.5, 0.05, 8, 1e-12
SIDES = pytest.mark.parametrize(("kind", "sign"), [(SAM, 1), (ReverseSAM, -1)])


def start() -> nn.Parameter:
    return nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))


def loss_at(step: int) -> Callable[[Tensor], Tensor]:
    """A loss of its own for each step."""
    scales = torch.tensor([1.0 + step % 3, 2.0, 0.5 + step % 2], dtype=torch.float64)
    return lambda theta: (scales * theta.square()).sum() + theta.prod()


def by_hand(every: int, sign: int) -> Tensor:
    """Theta after the steps, with autograd alone."""
    theta, direction = start().detach(), torch.zeros(0)
    for step in range(STEPS):
        gradient = torch.func.grad(loss_at(step))
        if step % every == 0:
            direction = gradient(theta)
        delta = sign * RHO * direction / (direction.norm() + EPS)
        theta = theta - LR * gradient(theta + delta)
    return theta


class Run:
    """Steps of an optimizer, and how often the loss was run."""

    def __init__(self, kind: type, every: int) -> None:
        self.theta = start()
        self.optimizer = kind(SGD([self.theta], lr=LR), rho=RHO, every=every)
        self.passes = 0

    def loss(self, step: int) -> Tensor:
        self.passes += 1
        return loss_at(step)(self.theta)

    def steps(self, *span: int, closure: str = "") -> "Run":
        for step in range(*span):
            if closure:
                self.optimizer.step(lambda step=step: self.closure(step, closure == "to none"))
                continue
            self.optimizer.backward(lambda step=step: self.loss(step))
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self

    def closure(self, step: int, to_none: bool) -> Tensor:
        self.optimizer.zero_grad(set_to_none=to_none)
        loss = self.loss(step)
        loss.backward()
        return loss


@pytest.mark.parametrize("closure", ["", "to none", "to zero"])
@pytest.mark.parametrize("every", [1, 2, 3, 20])
@SIDES
def test_delta_is_found_in_every_kth_step(kind: type, sign: int, every: int, closure: str) -> None:
    run = Run(kind, every).steps(STEPS, closure=closure)
    torch.testing.assert_close(run.theta.detach(), by_hand(every, sign), rtol=0, atol=1e-13)
    assert run.passes == STEPS + -(-STEPS // every)


@pytest.mark.parametrize(("later", "passes"), [(1, 5), (2, 5), (5, 4)])
def test_another_cadence_acts_at_once(later: int, passes: int) -> None:
    run = Run(SAM, 3).steps(2)
    run.optimizer.every = later
    assert run.steps(2, 3).passes == passes


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda run: pickle.loads(pickle.dumps(run))])
def test_a_copy_goes_on_with_the_direction_it_has(copied: Callable[[Run], Run]) -> None:
    through, first = Run(SAM, 3).steps(STEPS), Run(SAM, 3).steps(4)
    second = copied(first).steps(4, STEPS)
    assert torch.equal(second.theta, through.theta) and second.passes == through.passes


def test_a_checkpoint_is_that_of_the_base_and_finds_delta_anew() -> None:
    run = Run(SAM, 3).steps(4)
    saved = run.optimizer.state_dict()
    assert saved.keys() == run.optimizer.base.state_dict().keys()
    other = Run(SAM, 3)
    other.optimizer.load_state_dict(saved)
    assert other.steps(1).passes == 2


@pytest.mark.parametrize("which", [1, 2])
def test_delta_is_found_again_after_either_pass_has_failed(which: int) -> None:
    run = Run(SAM, 3)

    def fails() -> Tensor:
        loss = run.loss(0)
        return loss if run.passes != which else 1 / 0

    with pytest.raises(ZeroDivisionError):
        run.optimizer.backward(fails)
    run.passes = 0
    assert run.steps(1).passes == 2 and run.steps(1, 2).passes == 3


def test_micro_batches_share_the_delta_of_the_first() -> None:
    run = Run(SAM, 4)
    for part in range(4):
        run.optimizer.backward(lambda part=part: run.loss(part), weight=0.25)
    theta, gradients = start().detach(), [torch.func.grad(loss_at(part)) for part in range(4)]
    direction = gradients[0](theta)
    there = theta + RHO * direction / (direction.norm() + EPS)
    expected = torch.stack([gradient(there) for gradient in gradients]).mean(0)
    torch.testing.assert_close(run.theta.grad, expected, rtol=0, atol=1e-14)
    assert run.passes == 5


def test_after_a_pause_delta_is_found_anew() -> None:
    theta, passes = start(), []
    constraint = ALMConstraint(None, alpha=-9.0, mu=0.1)
    sides = SGD([theta], lr=0.0), ReverseSAM(SGD([theta], lr=0.0), rho=RHO, every=100)
    optimizer = DualOptimizer(*sides, constraint, probe_every=4)

    def forget() -> Tensor:
        passes[-1] += 1
        return loss_at(0)(theta)

    for _ in range(9):
        passes.append(0)
        optimizer.backward(retain=lambda: theta.sum(), forget=forget)
        optimizer.step()
        optimizer.zero_grad()
    assert passes == [2, 0, 0, 0, 2, 0, 0, 0, 2]


def test_an_overflow_of_the_loss_scale_is_not_reused_as_a_delta() -> None:
    theta, passes = nn.Parameter(torch.ones(2)), []
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=100)
    optimizer = SAM(
        SGD([theta], lr=LR), RHO, every=4, backward=lambda x: scaler.scale(x).backward()
    )
    for _ in range(3):
        passes.append(0)

        def objective() -> Tensor:
            passes[-1] += 1
            return 3 * theta.square().sum()

        optimizer.backward(objective)
        scaler.step(optimizer)
        scaler.update(2.0**10)
        optimizer.zero_grad()
    assert passes == [2, 2, 1]


def test_loading_both_sides_finds_their_deltas_anew() -> None:
    run = Run(SAM, 3)
    other = ReverseSAM(SGD([run.theta], lr=LR), rho=RHO, every=3)
    optimizer = DualOptimizer(run.optimizer, other, ALMConstraint(None, alpha=99.0, mu=0.1))

    def step() -> None:
        optimizer.backward(retain=lambda: run.loss(0), forget=lambda: run.loss(1))
        optimizer.step()
        optimizer.zero_grad()

    step()
    optimizer._load_control_state_dict(optimizer._control_state_dict())
    step()
    assert run.passes == 8
    step()
    assert run.passes == 10
