"""DualOptimizer: the gate, the two sides, what is set later, and the edges."""

import weakref
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from torch_alm import SAM, ALMConstraint, ConstraintGroup, DualOptimizer, ReverseSAM


def theta_of(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def observed(weight: float, *, mu: float = 1.0) -> ALMConstraint:
    """A constraint whose next weight is `weight` when 0 is observed."""
    return ALMConstraint(None, alpha=weight / mu, mu=mu)


def two(
    theta: nn.Parameter, constraint: ALMConstraint | None = None, **settings: Any
) -> DualOptimizer:
    sides = SGD([theta], lr=0.1), SGD([theta], lr=0.1)
    return DualOptimizer(*sides, constraint, **settings)


def test_both_gradients_are_taken_at_the_same_theta_in_the_papers_order() -> None:
    theta = theta_of(1.0, 2.0)
    calls: list[tuple[str, list[float]]] = []

    def objective(name: str) -> Callable[[], Tensor]:
        def run() -> Tensor:
            calls.append((name, theta.tolist()))
            return theta.square().sum()

        return run

    two(theta).backward(retain=objective("retain"), forget=objective("forget"))
    assert calls == [("retain", [1.0, 2.0]), ("forget", [1.0, 2.0])]
    calls.clear()
    sam = DualOptimizer(
        SAM(SGD([theta], lr=0.1), rho=5**0.5), ReverseSAM(SGD([theta], lr=0.1), rho=5**0.5)
    )
    losses = sam.backward(retain=objective("retain"), forget=objective("forget"))
    assert [name for name, _ in calls] == ["retain", "retain", "forget", "forget"]
    expected = torch.tensor([[1.0, 2.0], [2.0, 4.0], [1.0, 2.0], [0.0, 0.0]])
    torch.testing.assert_close(torch.tensor([at for _, at in calls]), expected)
    assert losses.retain.item() == pytest.approx(20.0)
    assert losses.forget.item() == pytest.approx(0.0, abs=1e-9)
    assert not losses.retain.requires_grad and not losses.forget.requires_grad


def test_backward_overrides_that_of_the_sides() -> None:
    theta = theta_of(1.0)
    calls: list[str] = []

    def engine(name: str) -> Callable[[Tensor], None]:
        def run(loss: Tensor) -> None:
            calls.append(name)
            loss.backward()

        return run

    sam = SAM(SGD([theta], lr=0.1), backward=engine("side"))
    optimizer = DualOptimizer(sam, SGD([theta], lr=0.1))
    objectives = {"retain": lambda: theta.square().sum(), "forget": lambda: theta.square().sum()}
    optimizer.backward(**objectives)
    assert calls == ["side", "side"]
    optimizer.backward_fn = engine("dual")
    optimizer.backward(**objectives)
    assert calls[2:] == ["dual"] * 3


@pytest.mark.parametrize(
    ("forget", "sense"),
    [(SAM, ">="), (SAM, None), (ReverseSAM, "<="), (SAM, "=="), (ReverseSAM, "==")],
)
def test_a_sense_that_does_not_fit_the_forget_optimizer(forget: type, sense: str | None) -> None:
    theta = theta_of(1.0)
    constraint = None if sense is None else ALMConstraint(None, 1.0, 1.0, sense=sense)
    fits = {"<=": "SAM or a", "==": "a"}.get(sense, "ReverseSAM or a")
    sentence = rf"forget side is {forget.__name__}, .* Did you mean {fits} plain optimizer\?"
    with pytest.raises(ValueError, match=sentence):
        DualOptimizer(SGD([theta]), forget(SGD([theta])), constraint)


def test_parts_that_do_not_fit_are_named() -> None:
    theta, other = theta_of(1.0), theta_of(1.0)
    with pytest.raises(ValueError, match="retain has 1 parameters and forget 2, of which 1"):
        DualOptimizer(SGD([theta]), SGD([theta, other]))
    with pytest.raises(ValueError, match="scale is 'both'"):
        two(theta, scale="both")
    for sides in ((SGD([theta]), [theta]), ([theta], SGD([theta]))):
        with pytest.raises(TypeError, match=r"^DualOptimizer wraps a torch\.optim\.Optimizer and"):
            DualOptimizer(*sides)
    with pytest.raises(TypeError, match="takes no closure"):
        two(theta).step(lambda: None)
    with pytest.raises(ValueError, match="has 2 multipliers, and one weighs"):
        two(theta, ALMConstraint(None, alpha=torch.ones(2), mu=1.0))


def test_a_checkpoint_of_something_else_is_refused_before_anything_is_loaded() -> None:
    theta = theta_of(1.0)
    make: Callable[[], Optimizer] = lambda: two(theta, ALMConstraint(None, 1.0, 1.0))  # noqa: E731
    optimizer = make()
    good = optimizer.state_dict()
    assert {*good} == {"retain", "forget", "constraint"}
    with pytest.raises(ValueError, match="Is it the checkpoint of a single optimizer"):
        optimizer.load_state_dict(SGD([theta]).state_dict())
    with pytest.raises(ValueError, match="has a constraint"):
        optimizer.load_state_dict({**good, "constraint": None})
    wrong = SGD([theta, theta_of(2.0)]).state_dict()
    with pytest.raises(ValueError, match=r"forget: groups of \[2\] parameters.*\[1\]"):
        optimizer.load_state_dict({**good, "forget": wrong})
    with pytest.raises(ValueError, match=r"groups of \[\] parameters"):
        optimizer.load_state_dict({**good, "forget": {}})


@pytest.mark.parametrize("sides", ["plain", "sam", "sam, inside"])
def test_a_scheduler_of_the_forget_side_goes_on_behind_a_closed_gate(sides: str) -> None:
    theta = nn.Parameter(torch.ones(1))
    retain, inner = SGD([theta], lr=0.1), SGD([theta], lr=0.1)
    forget = inner if sides == "plain" else ReverseSAM(inner, rho=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(inner if "inside" in sides else forget, 1, 0.5)
    optimizer = DualOptimizer(retain, forget, ALMConstraint(None, -5.0, 1.0))
    optimizer.backward(retain=lambda: theta.sum(), forget=lambda: theta.sum())
    optimizer.step()
    assert optimizer.constraint.weight == 0
    scheduler.step()  # a warning is an error here
    assert inner.param_groups[0]["lr"] == 0.05


def test_a_forward_whose_backward_is_skipped_is_resharded_behind() -> None:
    theta, calls = theta_of(1.0), []
    constraint = ALMConstraint(None, 0.0, 1.0)
    optimizer = two(theta, constraint, reshard=lambda: calls.append(constraint.observed))
    for value, skipped in ((-1.0, []), (2.0, [1])):  # open, then closed
        forget = lambda value=value: 0 * theta.sum() + value  # noqa: E731
        optimizer.backward(retain=lambda: 0 * theta.sum(), forget=forget, last=True)
        assert calls == skipped
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("last", [False, True])
def test_only_the_forget_objective_may_return_a_pair(last: bool) -> None:
    theta = theta_of(1.0)
    optimizer = two(theta)
    pair = lambda: (theta.sum(), theta.sum())  # noqa: E731
    with pytest.raises(TypeError, match=r"^DualOptimizer\.backward: .* returned tuple"):
        optimizer.backward(retain=pair, forget=lambda: theta.sum(), last=last)
    optimizer.backward(retain=lambda: theta.sum(), forget=pair, last=last)
    optimizer.step()  # nothing decides the gate but that there is no constraint
    assert theta.item() == pytest.approx(1 - 0.1 - 0.1)


def test_a_value_that_is_a_float_is_seen_as_it_is() -> None:
    theta, constraint = nn.Parameter(torch.ones(1)), ALMConstraint(None, alpha=1.0, mu=1.0)
    two(theta, constraint).backward(retain=theta.sum, forget=lambda: (theta.sum(), 0.1))
    assert constraint.step() == 1.0 - 0.1, "to the last bit of float64"


def test_forget_steps_that_are_skipped_are_counted_and_lambda_stays() -> None:
    """sqrt has a value at 0, and no gradient."""
    theta = theta_of(1.0)
    constraint = ALMConstraint(None, alpha=1.0, mu=1.0)
    optimizer = two(theta, constraint)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer.forget, 1)
    for so_far in (1, 2):
        optimizer.backward(retain=lambda: theta.sum(), forget=lambda: (0 * theta).sqrt().sum())
        with pytest.warns(UserWarning, match=rf"skipped \({so_far} so far\)"):
            optimizer.step()
        scheduler.step()  # and does not warn that no step came before
        optimizer.zero_grad()
    assert optimizer.skipped == 2 and constraint.multiplier == 0.0


def test_the_forget_gradient_is_freed_before_the_retain_step() -> None:
    theta = theta_of(1.0)
    kept: list[weakref.ref[Tensor]] = []
    alive: list[bool] = []
    retain, forget = SGD([theta], lr=0.1), SGD([theta], lr=0.1)
    forget.register_step_pre_hook(lambda *_: kept.append(weakref.ref(theta.grad)))
    retain.register_step_pre_hook(lambda *_: alive.append(kept[0]() is not None))
    optimizer = DualOptimizer(retain, forget, ALMConstraint(None, alpha=9.0, mu=1.0))
    optimizer.backward(retain=lambda: theta.sum(), forget=lambda: theta.sum())
    optimizer.step()
    assert alive == [False]


@pytest.mark.parametrize(
    "constraint", [ConstraintGroup({"c": ALMConstraint(None, 1.0, 1.0)}), "c", 1.0]
)
def test_what_is_no_constraint_is_named(constraint: Any) -> None:
    theta = theta_of(1.0)
    told = f"the constraint is {type(constraint).__name__}, which has no one multiplier"
    with pytest.raises(TypeError, match=told):
        DualOptimizer(SGD([theta], lr=0.1), SGD([theta], lr=0.1), constraint)


def test_a_mu_that_is_found_does_not_depend_on_who_scales_the_loss() -> None:
    def found(scale: float) -> float:
        theta = theta_of(1.0, 2.0)
        constraint = ALMConstraint(None, alpha=9.0, mu="auto")
        sides = SGD([theta], lr=0.0), AdamW([theta], lr=0.1, eps=0.0)
        optimizer = DualOptimizer(*sides, constraint, backward=lambda x: (scale * x).backward())
        optimizer.backward(retain=lambda: theta.sum(), forget=lambda: theta.square().sum())
        optimizer.step()
        return float(constraint.mu)

    assert found(8.0) == pytest.approx(found(1.0), rel=1e-9)


def test_a_mu_that_is_found_sees_what_clipping_leaves_of_both_sides() -> None:
    """Both pull with a norm of 0.1, so that the price of the limit is 1; x goes 0.05 a step."""
    x, goal = theta_of(0.0, 0.0, 0.0), torch.tensor([1.0, 2.0, 3.0])
    constraint, sums = ALMConstraint(None, alpha=9.0, mu="auto"), list[float]()
    optimizer = DualOptimizer(SGD([x], lr=0.5), SGD([x], lr=0.5), constraint)
    for _ in range(600):
        optimizer.backward(retain=lambda: (x - goal).square().sum() / 2, forget=x.sum)
        optimizer.clip_grad_norm_(0.1)
        optimizer.step()
        optimizer.zero_grad()
        sums.append(x.detach().sum().item())
    assert sums[-1] == pytest.approx(9.0, rel=0.01) and max(sums) < 10.5
    assert constraint.multiplier == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("wrap", [lambda base: base, ReverseSAM])
def test_one_optimizer_is_not_two_sides(wrap: Any) -> None:
    only = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))])
    with pytest.raises(ValueError, match="are one optimizer, whose moments would mix"):
        DualOptimizer(retain=only, forget=wrap(only))
    with pytest.raises(ValueError, match="are one optimizer, whose moments would mix"):
        DualOptimizer(retain=SAM(only), forget=wrap(only))


@pytest.mark.parametrize("side", ["retain", "forget"])
def test_an_objective_that_calls_the_constraint_itself_is_refused(side: str) -> None:
    theta = nn.Parameter(torch.ones(2))
    constraint = ALMConstraint(lambda: theta.sum(), alpha=9.0, mu=1.0)
    optimizer = DualOptimizer(SAM(SGD([theta], lr=0.1)), SGD([theta], lr=0.1), constraint)
    objectives = {"retain": lambda: theta.square().sum(), "forget": lambda: theta.sum()}
    with pytest.raises(ValueError, match="an objective called the constraint"):
        optimizer.backward(**{**objectives, side: constraint})
    assert constraint.observed == 0 and theta.grad is None


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("is_pair", [False, True])
@pytest.mark.parametrize(("sense", "worst"), [(">=", 16.0), ("<=", 36.0)])
def test_a_constraint_is_measured_where_it_is_hardest_to_meet(
    sense: Literal[">=", "<="], worst: float, is_pair: bool, every: int
) -> None:
    """Raise F, or descend a loss that raises it: both at the same point, by the same step.

    F = |x|^2 is 25 at (3, 4), and 16 and 36 at a distance of one from there.
    """
    x = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
    side = (ReverseSAM if sense == ">=" else SAM)(SGD([x], 0.01), rho=1.0, every=every)
    pressed = ALMConstraint(None, 26.0, 1.0, sense=sense, multiplier=3.0)
    dual = DualOptimizer(SGD([x], 0.0), side, pressed)
    sign = -1 if sense == ">=" else 1
    objective = (
        (lambda: (sign * x.square().sum(), x.square().sum()))
        if is_pair
        else (lambda: x.square().sum())
    )
    for _ in range(every):
        dual.backward(retain=lambda: x.sum(), forget=objective, weight=1 / every)
    dual.step()
    assert pressed.metrics()["value"] == pytest.approx(worst)
    nearby = torch.tensor([3.0, 4.0], dtype=torch.float64) * (1 + sign / 5)
    moved = (
        torch.tensor([3.0, 4.0], dtype=torch.float64) - 0.01 * pressed.weight * sign * 2 * nearby
    )
    torch.testing.assert_close(x.detach(), moved)


def backward(optimizer: DualOptimizer, theta: nn.Parameter) -> None:
    optimizer.backward(retain=lambda: theta.square().sum(), forget=lambda: theta.sum())


def test_the_cadence_of_measurements_may_be_set_later() -> None:
    theta = nn.Parameter(torch.ones(2))
    constraint = ALMConstraint(None, alpha=-5.0, mu=1.0)
    optimizer = DualOptimizer(SGD([theta], lr=0.0), SGD([theta], lr=0.0), constraint)
    optimizer.probe_every = 3
    for _ in range(7):  # the first releases; then every third
        backward(optimizer, theta)
        optimizer.step()
        optimizer.zero_grad()
    assert optimizer.probe_every == 3
    assert constraint.metrics()["steps"] == 3


def test_what_evaluation_did_last_is_undone_first() -> None:
    class Modal(SGD):
        def eval(self) -> None:
            done.append(self)

        def train(self) -> None:
            assert done.pop() is self

    theta, done = nn.Parameter(torch.ones(1)), list[Modal]()
    optimizer = DualOptimizer(SAM(Modal([theta])), Modal([theta]))
    optimizer.eval()
    assert len(done) == 2
    optimizer.train()
    assert not done


@pytest.mark.filterwarnings("ignore:DualOptimizer.step")
@pytest.mark.parametrize("wrapped", [False, True])
def test_schedules_of_both_sides_go_on_after_a_step_without_a_backward(wrapped: bool) -> None:
    theta = nn.Parameter(torch.ones(2))
    sides = [SGD([theta], lr=0.1), SGD([theta], lr=0.1)]
    sides = [SAM(sides[0]), ReverseSAM(sides[1])] if wrapped else sides
    optimizer = DualOptimizer(*sides)
    schedulers = [LambdaLR(side, lambda epoch: 0.5**epoch) for side in sides]
    optimizer.step()
    for scheduler in schedulers:
        scheduler.step()  # torch warns of a scheduler that goes before its optimizer
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.05]
