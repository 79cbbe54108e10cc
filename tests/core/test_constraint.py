"""ALMConstraint: the multiplier, the penalty and what never reaches them."""

import copy
import math
import pickle
import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.core.following import constraint
from torch_alm import SAM, ALMConstraint
from torch_alm.filters import Mean
from torch_alm.rules import Leak


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sense", [">=", "<=", "=="])
@pytest.mark.parametrize("multiplier", [0.0, 2.0])
@pytest.mark.parametrize("mu", [0.0, 0.5])
@pytest.mark.parametrize("value", [-3.0, 1.0, 1.5, 8.0])
def test_penalty_gradient_is_the_next_multiplier(
    dtype: torch.dtype, sense: str, multiplier: float, mu: float, value: float
) -> None:
    c = constraint(sense=sense, multiplier=multiplier, mu=mu)
    x = torch.tensor(value, dtype=dtype, requires_grad=True)
    violation = value - 1.0 if sense == "<=" else 1.0 - value
    plus = multiplier + mu * violation
    plus = plus if sense == "==" else max(plus, 0.0)
    expected = (plus**2 - multiplier**2) / (2 * mu) if mu else multiplier * violation

    for penalty in (c.penalty, ALMConstraint.__call__):
        if penalty is not c.penalty:
            c.measure = lambda: x
            price = c()
        else:
            price = c.penalty(x)
        (gradient,) = torch.autograd.grad(price, x)
        assert price.dtype == torch.promote_types(dtype, torch.float32)
        assert price.item() == pytest.approx(expected, rel=1e-6)
        assert gradient.item() == plus * (1 if sense == "<=" else -1)
    assert c.step() == plus == c.multiplier and c.mu == mu


def test_penalty_is_pure_and_call_observes() -> None:
    c = ALMConstraint(lambda x, *, scale: x * scale, alpha=1.0, mu=0.5)
    before = c.state_dict()
    c.penalty(torch.tensor(0.0))
    assert c.state_dict().keys() == before.keys()
    for verb in ("step", "preview"):
        with pytest.raises(
            RuntimeError, match=rf"\.{verb}\(\) found no measurement since the last"
        ):
            getattr(c, verb)()
    c(torch.tensor(-1.0, requires_grad=True), scale=2.0)
    assert c.step() == 1.5 and c.metrics()["value"] == -2.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_the_penalty_of_a_non_finite_measurement_costs_nothing(bad: float) -> None:
    x = torch.tensor(2.0, requires_grad=True)
    c = ALMConstraint(lambda: x * bad, alpha=1.0, mu=0.5, multiplier=1.0)
    (x.square() + c()).backward()
    assert x.grad.item() == 4.0
    c().backward()  # nor is it an error on its own
    assert x.grad.item() == 4.0


@pytest.mark.parametrize(
    "given",
    [
        {"mu": -0.1},
        {"mu": math.nan},
        {"alpha": math.inf},
        {"alpha": "4"},
        {"multiplier": -1.0},
        {"multiplier": math.nan},
        {"multiplier": [0.0, 0.0, 0.0], "alpha": [1.0, 1.0]},
        {"sense": ">"},
        {"every": 0},
        {"every": 1.5},
        {"tolerance": -0.1},
        {"filter": Mean},
        {"filter": 8},
        {"rules": Leak(0.5)},
        {"rules": (Leak,)},
        {"nonfinite": "ignore"},
        {"measure": 2.0},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_named(given: dict[str, Any]) -> None:
    name, found = next(iter(given.items()))
    with pytest.raises(
        ValueError, match=re.escape(f"ALMConstraint: {name} is {found!r}; it must be")
    ):
        ALMConstraint(**{"measure": None, "alpha": 1.0, "mu": 0.5, **given})


@pytest.mark.parametrize("value", ["4", None, 1j, torch.tensor(1j), ["a"]], ids=str)
def test_a_value_that_cannot_be_compared_is_named(value: Any) -> None:
    with pytest.raises(ValueError, match=r"observe: value is .*; it must be a number, several"):
        constraint().observe(value)


def test_alpha_is_broadcast_over_the_first_vector_and_then_the_shape_is_fixed() -> None:
    c = constraint()
    c.observe(torch.tensor([0.0, 3.0]))
    assert c.step().tolist() == [0.5, 0.0]
    for wrong in (torch.zeros(3), torch.zeros(()), 0.0):
        with pytest.raises(ValueError, match=r"and the multipliers \(2,\)"):
            c.observe(wrong)
    other = constraint()
    other.load_state_dict(c.state_dict())
    assert other.multiplier.tolist() == [0.5, 0.0]
    scalar = constraint()
    scalar.observe(0.0)
    for call in (scalar.observe, scalar.penalty):
        with pytest.raises(
            ValueError, match=r"shape \(8,\) and the multipliers \(\);.*`\.mean\(\)`"
        ):
            call(torch.zeros(8))


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan])
def test_weights_of_observations_are_positive(weight: float) -> None:
    with pytest.raises(ValueError, match=r"weight is .*; it must be positive"):
        constraint().observe(0.0, weight=weight)


def test_a_call_without_a_measure_says_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"measure is None.*observe\(value\)"):
        constraint()(torch.ones(()))


@pytest.mark.parametrize("given", [{"multiplier": 1.0, "mu": 0.0}, {}], ids=str)
def test_a_detached_measure_is_said_once_and_only_where_it_would_push(given: Any) -> None:
    c = constraint(**given)
    c.measure = lambda x: x.detach()
    x = torch.tensor(0.0, requires_grad=True)
    with pytest.warns(UserWarning, match="without a gradient, and the weight is not 0"):
        c(x)
    c(x)  # warnings are errors
    c = constraint()
    c.measure = lambda x: x.detach()
    c(torch.tensor(2.0))
    with torch.no_grad():
        c(x)


def test_no_graph_is_kept() -> None:
    x = torch.tensor(0.5, requires_grad=True)
    c = ALMConstraint(lambda: x * 2, alpha=1.0, mu=0.5)
    c()
    c.observe(x * 3)
    assert c.observed == 2
    assert not any(isinstance(o.value, Tensor) and o.value.requires_grad for o in c._observed)


def test_measured_a_hundred_times_and_never_stepped_it_says_so_once() -> None:
    c = ALMConstraint(None, 1.0, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(99):
            c.observe(0.0)
    with pytest.warns(UserWarning, match=r"100 measurements wait.*`constraint.step\(\)`"):
        c.observe(0.0)
    for _ in range(200):
        c.observe(0.0)  # warnings are errors
    assert c.step() == 0.5
    for _ in range(200):
        c.observe(0.0)  # one that is stepped now and then may wait


@pytest.mark.parametrize(("parts", "measured"), [(1, 10), (4, 13), (16, 49)])
def test_a_loop_that_never_steps_it_says_so_within_its_first_steps(
    parts: int, measured: int
) -> None:
    x = torch.zeros(1, requires_grad=True)
    c, optimizer = ALMConstraint(lambda: x.sum(), 1.0, 0.5), SAM(torch.optim.SGD([x], lr=0.1))
    with pytest.warns(UserWarning, match=rf"{measured} measurements wait.*`constraint.step\(\)`"):
        while not (c.observed and c.metrics()["status"] == "unstepped"):
            optimizer.backward(c)
            if c.observed % parts == 0:
                optimizer.step()
    assert c.observed == measured
    optimizer.backward(c)  # warnings are errors


@pytest.mark.parametrize("filter", [None, Mean(2)])
def test_unequal_micro_batches_are_weighted_by_their_rows(filter: Any) -> None:
    rows = torch.linspace(0.0, 1.4, 8, dtype=torch.float64, requires_grad=True)
    c = ALMConstraint(lambda x, weights: (x * weights).mean(), 1.0, 0.5, filter=filter)
    whole = ALMConstraint(lambda x: x.mean(), 1.0, 0.5, filter=filter)
    for _ in range(3):
        for part in (rows[:6], rows[6:]):
            c(part, weights=1.0, weight=len(part))
        whole(rows)
        assert c.step() == pytest.approx(whole.step(), rel=1e-12)
    with pytest.raises(ValueError, match=r"weight is -1.*positive"):
        c(rows, weights=1.0, weight=-1)


def test_many_measurements_of_a_step_and_two_optimizers_are_none_that_was_forgotten() -> None:
    x = torch.zeros(1, requires_grad=True)
    c, both = ALMConstraint(lambda: x.sum(), 1.0, 0.5), [torch.optim.SGD([x], lr=0.1)] * 2
    for _ in range(16):
        c().backward()
    for optimizer in both:
        optimizer.step()
        c.observe(0.0)
    assert c.metrics()["status"] == "unmeasured" and c.step() == 0.5


def test_a_copy_or_a_resumed_run_that_nobody_steps_says_so() -> None:
    c = constraint()
    c.attach(torch.optim.SGD([torch.zeros(1)], lr=0.1))
    c.observe(0.0)
    c.step()
    resumed = constraint()
    resumed.load_state_dict(c.state_dict())
    for other in (resumed, copy.deepcopy(c), pickle.loads(pickle.dumps(c))):
        for _ in range(99):
            other.observe(0.0)
        assert other.metrics()["status"] == "violated"
        with pytest.warns(UserWarning, match=r"A copy, or one that was loaded"):
            other.observe(0.0)
        assert other.metrics()["status"] == "unstepped"
        other.step()
        assert other.metrics()["status"] == "violated"


def test_five_hundred_steps_without_a_number_are_not_five_hundred_warnings() -> None:
    c = constraint()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(500):
            c.observe(math.nan)
            c.step()
    assert c.skipped == 500 and 8 <= len(said) <= 24


def test_what_refuses_a_step_refuses_a_look() -> None:
    c = ALMConstraint(None, 1.0, "auto")
    assert 'mu="auto"' in repr(c)
    c.observe(0.0)
    with pytest.raises(RuntimeError, match="found values only"):
        c.preview()
    assert c.observed == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda state: state.update(sense="<="), "push the wrong way"),
        (
            lambda state: state.update(multiplier=torch.zeros(3)),
            r"\(3,\) and this constraint \(2,\)",
        ),
        (lambda state: state.update(extra=1), r"'extra', .*\] and needs"),
        (lambda state: state.pop("mu"), "needs"),
        (lambda state: state["stall"].popitem(), "in 'stall' and needs"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(change: Any, sentence: str) -> None:
    c = constraint(alpha=torch.tensor([1.0, 0.0]), filter=Mean(3))
    c.observe([0.0, 0.0])
    c.step()
    before, state = str(c.state_dict()), c.state_dict()
    change(state)
    with pytest.raises(ValueError, match=sentence):
        c.load_state_dict(state)
    assert str(c.state_dict()) == before


def test_an_alpha_that_is_assigned_after_a_look_acts_in_the_step() -> None:
    c = constraint()
    c.observe(0.0)
    assert c.preview() == 0.5
    c.alpha = 2.0
    assert c.preview() == c.step() == 1.0
    with pytest.raises(AttributeError):
        c.sense = "<="
