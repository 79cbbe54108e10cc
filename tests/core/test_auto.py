"""mu="auto": what is found does not depend on how a step is put together, saved or skipped."""

import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer, RMSprop

from tests.core.auto_oracle import Rule, solve
from torch_alm import SAM, ALMConstraint, ConstraintGroup
from torch_alm.auto import Auto
from torch_alm.filters import Mean
from torch_alm.rules import Cap

WIDE = torch.float64
MAKERS: dict[str, Callable[[list[Tensor]], Optimizer]] = {
    "sgd": lambda p: SGD(p, lr=0.05),
    "momentum": lambda p: SGD(p, lr=0.02, momentum=0.9),
    "adam": lambda p: Adam(p, lr=0.02),
    "rmsprop": lambda p: RMSprop(p, lr=0.003),
    "sam": lambda p: SAM(Adam(p, lr=0.02), rho=0.0),
}


class Loop:
    """Least squares with a limit on (or a target for) the sum of squares of theta."""

    def __init__(self, make: str = "adam", sense: Any = "<=", alpha: float = 0.5) -> None:
        g = torch.Generator().manual_seed(3)
        self.x = torch.randn(8, 5, generator=g, dtype=WIDE)
        self.y = torch.randn(8, generator=g, dtype=WIDE) * 3
        self.theta = torch.full((5,), 0.1, dtype=WIDE).requires_grad_()
        self.optimizer = MAKERS[make]([self.theta])
        self.constraint = ALMConstraint(self.size, alpha, "auto", sense=sense)
        self.handle = self.constraint.attach(self.optimizer)

    def size(self) -> Tensor:
        return self.theta.square().sum()

    def loss(self, rows: slice = slice(None)) -> Tensor:
        return (self.x[rows] @ self.theta - self.y[rows]).square().mean() + self.constraint()

    def run(self, steps: int) -> "Loop":
        for _ in range(steps):
            self.optimizer.zero_grad()
            if isinstance(self.optimizer, SAM):
                self.optimizer.backward(self.loss)
            else:
                self.loss().backward()
            self.optimizer.step()
        return self

    def same(self, other: "Loop", **near: float) -> bool:
        mine, theirs = self.constraint.state_dict(), other.constraint.state_dict()
        near = near or {"rtol": 0.0, "atol": 0.0}
        torch.testing.assert_close(self.theta, other.theta, **near)
        torch.testing.assert_close(mine["auto"], theirs["auto"], **near)
        return mine["multiplier"] == pytest.approx(theirs["multiplier"], rel=near["rtol"])


@pytest.mark.parametrize(
    ("objective", "decay", "price"),
    [(lambda x: 0 * x.sum(), 0.1, 0.1 * 9 / 14), (lambda x: x.pow(4).sum(), 0.0, 6.036)],
    ids=["L2 alone", "flat at the start"],
)
def test_a_price_that_is_found_on_the_way_is_reached(
    objective: Callable[[Tensor], Tensor], decay: float, price: float
) -> None:
    """The first is |x|^2 decay / 2, least where x is 9 / 14 of each; the other has x^3 for it."""
    x, by = torch.zeros(3, requires_grad=True), torch.tensor([1.0, 2.0, 3.0])
    optimizer = Adam([x], lr=0.03, weight_decay=decay)
    constraint = ALMConstraint(lambda: (by * x).sum(), 9.0, "auto")
    constraint.attach(optimizer)
    for _ in range(900):
        optimizer.zero_grad()
        (objective(x) + constraint()).backward()
        optimizer.step()
    assert (by * x).sum().item() == pytest.approx(9.0, rel=1e-3)
    assert constraint.multiplier == pytest.approx(price, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_rounding_leaves_of_the_penalty_is_no_price(dtype: torch.dtype) -> None:
    """In two parts, each rounded, 0.1 c and 0.2 c are not quite the gradient of 0.3 c."""
    x = torch.linspace(0.1, 1.7, 7).to(dtype).requires_grad_()
    optimizer = Adam([x])
    constraint = ALMConstraint(lambda: x.square().sum(), 99.0, "auto", multiplier=7.0)
    constraint.attach(optimizer)
    penalty = constraint()
    (0.1 * penalty).backward(retain_graph=True)
    (0.2 * penalty).backward()
    optimizer.step()
    assert constraint.state_dict()["auto"]["balance"] == 0 < float(constraint.mu)


def test_sam_is_read_at_the_perturbed_point() -> None:
    theta = torch.tensor([1.0], dtype=WIDE, requires_grad=True)
    optimizer = SAM(SGD([theta], lr=0.1), rho=0.5)
    constraint = ALMConstraint(lambda: theta.square().sum(), 0.1, "auto", sense="<=")
    constraint.attach(optimizer)
    optimizer.backward(lambda: 3 * theta.sum() + constraint())
    optimizer.step()
    found = constraint.state_dict()["auto"]
    assert found["gain"] == pytest.approx(0.1 * (2 * 1.5) ** 2, rel=1e-12)
    assert found["balance"] == pytest.approx(3 / (2 * 1.5), rel=1e-12)


def test_members_of_a_group_find_their_own_whatever_their_units() -> None:
    theta = torch.zeros(2, dtype=WIDE, requires_grad=True)
    optimizer = SGD([theta], lr=0.1)
    group = ConstraintGroup(
        {
            "far": ALMConstraint(lambda: 2.0**10 * theta[0], 2.0**10, "auto"),
            "near": ALMConstraint(lambda: theta[1], 1.0, "auto"),
        }
    )
    group.attach(optimizer)
    for _ in range(300):
        optimizer.zero_grad()
        (theta.square().sum() + group()).backward()
        optimizer.step()
        assert theta[0] == theta[1]
    assert theta[0] > 0.1
    assert group["far"].multiplier == group["near"].multiplier / 2**10 > 0
    assert group["far"].mu == group["near"].mu / 2**20


def test_a_constraint_out_of_reach_does_not_run_to_infinity() -> None:
    theta = torch.zeros(1, dtype=WIDE, requires_grad=True)
    optimizer = SGD([theta], lr=0.1)
    constraint = ALMConstraint(lambda: torch.sigmoid(theta).sum(), 20.0, "auto")
    constraint.attach(optimizer)
    weights, said = list[Any](), list[int]()
    for step in range(1, 1201):
        optimizer.zero_grad()
        (theta.square().sum() + constraint()).backward()
        optimizer.step()
        weights.append(constraint.weight)
        if constraint.metrics()["status"] == "suspected_infeasible":
            said.append(step)
    assert (said[0], said[-1]) == (640, step)
    assert constraint.multiplier <= 10 * weights[640 - 1], "where the second stretch ends"
    assert weights[-1] > 0 and theta.isfinite().all()


def test_a_violation_that_lasts_because_the_level_moves_is_ended() -> None:
    """The nearest point to 0 whose sum is at least 1: 2 / 3 = lambda."""
    theta = torch.zeros(3, requires_grad=True)
    optimizer = Adam([theta], lr=0.02)
    constraint = ALMConstraint(lambda: theta.sum(), 0.0, "auto")
    constraint.attach(optimizer)
    for step in range(1200):
        constraint.alpha = min(1.0, step / 500)
        optimizer.zero_grad()
        (theta.square().sum() + constraint()).backward()
        optimizer.step()
    assert theta.sum().item() == pytest.approx(1.0, abs=1e-4)
    assert constraint.multiplier == pytest.approx(2 / 3, rel=1e-3)
    assert constraint.metrics()["status"] in ("satisfied", "violated")


@pytest.mark.filterwarnings("ignore:.*are not finite")
def test_an_entry_that_is_nan_in_the_first_step_is_skipped_like_a_later_one() -> None:
    theta = torch.nn.Parameter(torch.zeros(2))
    optimizer = SGD([theta], lr=0.1)
    constraint = ALMConstraint(lambda by: theta * by, alpha=torch.ones(2), mu="auto")
    constraint.attach(optimizer)
    for by in (torch.tensor([math.nan, 1.0]), torch.ones(2), torch.ones(2)):
        optimizer.zero_grad()
        (theta.square().sum() + constraint(by)).backward()
        optimizer.step()
    assert constraint.skipped == 1 and theta[1] > 0


def test_a_gradient_that_reaches_nothing_of_the_optimizer_is_refused() -> None:
    theta, average = (torch.ones(2, requires_grad=True) for _ in "ab")
    optimizer = SGD([theta], lr=0.1)
    constraint = ALMConstraint(lambda: average.sum(), 9.0, "auto")
    constraint.attach(optimizer)
    (theta.square().sum() + constraint()).backward()
    with pytest.raises(RuntimeError, match="reaches no parameter of the optimizer"):
        optimizer.step()


def test_values_alone_are_refused() -> None:
    constraint = ALMConstraint(None, 1.0, "auto")
    constraint.observe(0.0)
    with pytest.raises(
        RuntimeError, match=r"needs the constraint's gradient and found values only"
    ):
        constraint.step()
    loop = Loop()
    loop.constraint.measure = lambda: torch.zeros(())
    loop.loss().backward()
    with pytest.raises(RuntimeError, match="needs the constraint's gradient"):
        loop.optimizer.step()
    loop = Loop()
    loop.constraint()  # not part of the loss
    loop.theta.square().sum().backward()
    with pytest.raises(RuntimeError, match=r"no `backward\(\)` has passed"):
        loop.optimizer.step()


@pytest.mark.parametrize(
    "given", [{"every": 2}, {"filter": Mean(4)}, {"rules": [Cap(1.0)]}], ids=str
)
def test_what_it_does_not_go_with_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"mu='auto' found .* Did you mean"):
        ALMConstraint(None, 1.0, "auto", **given)


def test_noise_in_the_measure_moves_neither_theta_nor_lambda_for_good() -> None:
    """A batch's factor is in the violation and in its gradient: the two go together."""
    g = torch.Generator().manual_seed(0)
    x = torch.zeros(1, dtype=WIDE, requires_grad=True)
    optimizer = SGD([x], lr=0.05)
    constraint = ALMConstraint(lambda n: ((1 + n) * x).sum(), 1.0, "auto")
    constraint.attach(optimizer)
    seen = []
    for _ in range(1500):
        n = torch.randn((), generator=g, dtype=WIDE)
        optimizer.zero_grad()
        ((x + 1).square().sum() + constraint(n)).backward()
        optimizer.step()
        seen.append(x.item())
    assert sum(seen[-300:]) / 300 == pytest.approx(1.0, abs=0.1)
    assert constraint.multiplier == pytest.approx(4.0, rel=0.1)


def test_the_rule_under_noise_is_the_one_by_hand() -> None:
    g = torch.Generator().manual_seed(5)
    auto, rule, multiplier = Auto(), Rule("<="), 0.0
    a, rest = torch.tensor([3.0, 4.0], dtype=WIDE), torch.tensor([-6.0, 8.0], dtype=WIDE)
    for t in range(900):
        c = math.exp(-t / 60) + 0.2 * torch.randn((), generator=g).item()
        weight = rule.weigh(c)
        auto.see(c)
        assert max(multiplier + auto.mu * auto.filtered, 0.0) == pytest.approx(weight, rel=1e-9)
        rule.calibrate(a, rest + weight * a, lambda a, _: 0.01 * a)
        auto.calibrate((0.25, 10.0 / 5.0, True))
        multiplier = max(multiplier + auto.advance(), 0.0)
        rule.advance()
    assert rule.K < 0.5 and rule.lam > 0


def test_a_response_that_says_nothing_changes_nothing_and_without_a_rest_mu_is_small() -> None:
    entry = Auto()
    entry.see(1.0).calibrate((2.0, 0.0, False))
    for nothing in ((math.inf, 1.0), (math.nan, 1.0), (3.0, math.nan), (0.0, 1.0)):
        entry.calibrate((*nothing, False))
    assert (entry.gain, entry.balance, entry.mu) == (2.0, 0.0, 1e-3 / 2.0)


def test_without_a_price_lambda_waits_for_what_the_least_mu_takes_off() -> None:
    auto = Auto().see(0.99)
    vars(auto).update(gain=2.0, floor=1e-3, last=1.0, count=19.0)
    theta = 1 - (1.0 - 0.99) / (20 * 1e-3 * 0.99)  # of c a thousandth in each of 20 steps
    assert auto.advance() == pytest.approx(theta * 1e-3 / 2 * 0.99, rel=1e-9)


def test_what_moves_smoothly_is_no_noise() -> None:
    """The weight then follows the violation itself, whatever swings it goes through."""
    auto, times = Auto(), range(200)
    for c in (math.exp(-t / 80) * math.cos(t / 3) for t in times):
        assert auto.see(c).filtered == pytest.approx(c, rel=0, abs=1e-15)
        auto.advance()


@pytest.mark.parametrize(
    ("make", "sense", "alpha"),
    [("momentum", "<=", 0.5), ("adam", ">=", 30.0), ("rmsprop", "==", 0.5), ("adam", "<=", 0.5)],
)
def test_a_run_is_that_of_the_rule_by_hand(make: str, sense: str, alpha: float) -> None:
    loop, other = Loop(make, sense, alpha), Loop(make, sense, alpha)
    other.handle.remove()
    sign = 1.0 if sense == "<=" else -1.0
    expected = solve(
        other.theta,
        other.optimizer,
        lambda: (other.x @ other.theta - other.y).square().mean(),
        lambda: sign * (other.size() - alpha),
        sense,
        100,
    )
    for theta in expected:
        torch.testing.assert_close(loop.run(1).theta.detach(), theta, rtol=1e-9, atol=1e-9)
    assert loop.constraint.multiplier != 0


def test_a_look_ahead_changes_nothing() -> None:
    loop = Loop().run(3)
    loop.loss()
    before = str(loop.constraint.state_dict())
    loop.constraint.preview()
    assert str(loop.constraint.state_dict()) == before


@pytest.mark.parametrize(("make", "at"), [("adam", 1), ("sam", 33), ("adam", 79)])
def test_a_resumed_run_is_the_run_that_never_stopped(make: str, at: int) -> None:
    whole, first, second, file = Loop(make).run(100), Loop(make).run(at), Loop(make), io.BytesIO()
    parts = first.constraint.state_dict(), first.optimizer.state_dict(), first.theta.detach()
    torch.save(parts, file)
    constraint, optimizer, theta = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    second.theta.data.copy_(theta)
    second.optimizer.load_state_dict(optimizer)
    second.constraint.load_state_dict(constraint)
    assert second.constraint.mu == first.constraint.mu
    assert second.run(100 - at).same(whole)


@pytest.mark.parametrize(
    ("is_mean", "make", "passes"),
    [(True, "adam", 1), (True, "sgd", 4), (False, "adam", 4), (False, "sgd", 1)],
)
def test_micro_batches_are_one_step(make: str, is_mean: bool, passes: int) -> None:
    """Whoever adds up instead of averaging has a loss that much larger."""
    whole, parts = Loop(make), Loop(make)
    for _ in range(70):
        whole.optimizer.zero_grad()
        ((1 if is_mean else 4) * whole.loss()).backward()
        whole.optimizer.step()
        parts.optimizer.zero_grad()
        share, losses = 0.25 if is_mean else 1.0, []
        for i in range(4):
            losses.append(share * parts.loss(slice(2 * i, 2 * i + 2)))
            if len(losses) == 4 // passes:
                torch.stack(losses).sum().backward()
                losses.clear()
        parts.optimizer.step()
    assert parts.same(whole, rtol=1e-9, atol=1e-9) and parts.constraint.multiplier > 0
