"""Metrics, statuses; and what a checkpoint must hold."""

import copy
import io
import math
import pickle
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from tests.core.following import constraint
from torch_alm import ALMConstraint
from torch_alm.filters import EMA, Filter, Mean
from torch_alm.rules import Cap, Hold, Leak, PenaltyGrowth, WarmUp


def follow(c: ALMConstraint, values: list[Any]) -> dict[str, Any]:
    for value in values:
        c.observe(value)
        c.step()
    return c.metrics()


def test_the_status_of_a_vector_is_that_of_its_worst_entry() -> None:
    c = constraint(alpha=torch.tensor([1.0, 1.0, 1.0]), multiplier=torch.tensor([0.0, 4.0, 0.0]))
    metrics = follow(c, [torch.tensor([0.5, 1.75, 9.0])])
    assert metrics["violation"] == pytest.approx((0.5 - 0.75 - 8.0) / 3)
    assert metrics["status"] == "violated"


def test_all_metrics_are_plain_numbers_or_a_word() -> None:
    c = constraint(alpha=torch.ones(2))
    for value in follow(c, [torch.zeros(2)]).values():
        assert type(value) in (int, float, str)


class Waits(TorchDispatchMode):
    """A count of the operations that bring a number to the host."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_a_call_waits_once_and_step_and_answers_never() -> None:
    c = ALMConstraint(lambda x: x.square().sum(), alpha=1.0, mu=0.5, filter=Mean(3))
    x = torch.ones(4, requires_grad=True)
    c.penalty(x.sum())  # alpha is rounded to a type once
    with Waits() as waits:
        c(x).backward()
        assert waits.count == 1
        c.step()
        c.metrics()
        assert waits.count == 1


@pytest.mark.parametrize("sense", [">=", "<=", "=="])
def test_a_violation_of_rounding_is_not_called_one(sense: Any) -> None:
    """The multiplier follows it all the same."""
    beyond = -1.0 if sense == "<=" else 1.0
    for size, status in ((1e-7, "satisfied"), (1e-5, "violated")):
        c = ALMConstraint(None, alpha=50.0, mu=1.0, sense=sense)
        c.observe(50.0 - beyond * 50.0 * size)
        assert c.step() == pytest.approx(50.0 * size, rel=1e-6)
        assert c.metrics()["status"] == status


def test_the_status_at_an_alpha_of_0_is_measured_in_ones() -> None:
    for value, status in ((1e-7, "satisfied"), (1e-5, "violated")):
        c = ALMConstraint(None, alpha=torch.tensor([0.0, 50.0]), mu=1.0, sense="<=")
        assert follow(c, [torch.tensor([value, 50.0])])["status"] == status


def test_every_status_in_a_life() -> None:
    c = constraint(rules=[Cap(5.0)], tolerance=0.1)
    assert c.metrics()["status"] == "unmeasured"
    c.observe(math.nan)
    with pytest.warns(UserWarning, match="not finite"):
        c.step()
    assert c.metrics()["status"] == "non_finite"
    assert follow(c, [0.0])["status"] == "violated"
    c.observe(math.inf)
    with pytest.warns(UserWarning, match="not finite"):
        c.step()
    assert c.metrics()["status"] == "non_finite"
    assert follow(c, [0.95])["status"] == "satisfied", "within the tolerance, and still pushed"
    assert follow(c, [9.0])["status"] == "released"
    with pytest.warns(UserWarning, match="limit of Cap"):
        assert follow(c, [-10.0])["status"] == "capped"
    assert follow(c, [1.0])["status"] == "satisfied", "met, wherever the multiplier is"


def test_steps_at_the_limit_do_not_count_as_growing_pressure() -> None:
    c = constraint(rules=[Cap(0.5)])
    with pytest.warns(UserWarning, match="limit of Cap"):
        follow(c, [0.0] * 300)
    c.rules = ()
    assert c.metrics()["status"] == "violated", "nothing was tried yet"


def test_steps_within_the_tolerance_do_not_count_as_violated() -> None:
    c = constraint(tolerance=1.0)
    follow(c, [0.0] * 300)
    assert follow(c, [-0.5])["status"] == "violated"


def test_discard_forgets_the_step() -> None:
    c = constraint()
    c.observe(-50.0)
    assert c.observed == 1
    c.discard()
    assert c.observed == 0
    assert follow(c, [1.0])["value"] == 1.0


SETTINGS = st.fixed_dictionaries(
    {
        "sense": st.sampled_from([">=", "<="]),
        "every": st.integers(1, 4),
        "rules": st.tuples(
            st.builds(WarmUp, st.integers(0, 5)),
            st.sampled_from([Hold(0.7), Cap(3.0)]),
            st.sampled_from([Leak(0.3, after=2), PenaltyGrowth(1.5, limit=4.0)]),
        ),
        "tolerance": st.sampled_from([0.0, 0.2]),
        "multiplier": st.sampled_from([0.0, 1.0]),
    }
)
FILTERS = st.sampled_from([None, Mean(4, deadband=0.5), Mean(3), EMA(0.7)])

reaching_its_limit = pytest.mark.filterwarnings(
    "ignore:ALMConstraint.step. the stored multiplier has reached"
)


@reaching_its_limit
@settings(max_examples=60, derandomize=True, deadline=None)
@given(SETTINGS, FILTERS, st.sampled_from([None, 3]), st.integers(0, 60), st.integers(0, 99))
def test_resume_at_any_step_equals_never_stopping(
    given: dict[str, Any], each: Filter | None, size: int | None, stop: int, seed: int
) -> None:
    noise, alpha = random.Random(seed), 1.0 if size is None else torch.ones(size)
    whole = constraint(**{**given, "filter": each, "alpha": alpha})
    rows = [[noise.gauss(0.5, 1.0) for _ in range(size or 1)] for _ in range(stop + 30)]
    values = [row[0] if size is None else torch.tensor(row) for row in rows]
    for value in values[:stop]:
        whole.observe(value)
        whole.step()
    buffer = io.BytesIO()
    torch.save(whole.state_dict(), buffer)
    buffer.seek(0)
    resumed = constraint(**{**given, "filter": each, "alpha": alpha})
    resumed.load_state_dict(torch.load(buffer, weights_only=True))
    twins = [whole, resumed, pickle.loads(pickle.dumps(whole)), copy.deepcopy(whole)]
    for value in values[stop:]:
        weights = []
        for twin in twins:
            twin.observe(value)
            weights.append(torch.as_tensor(twin.step()))
        assert all(torch.equal(weights[0], weight) for weight in weights)
    assert len({str(twin.metrics()) for twin in twins}) == 1
    assert len({str(twin.state_dict()) for twin in twins}) == 1


def test_a_checkpoint_with_something_missing_inside_is_refused() -> None:
    c = constraint()
    follow(c, [0.0, 0.5])
    for part in ("history", "stall"):
        state = c.state_dict()
        state[part].popitem()
        with pytest.raises(ValueError, match=f"in '{part}' and needs"):
            c.load_state_dict(state)
    with pytest.raises(ValueError, match="not finite"):
        c.load_state_dict({**c.state_dict(), "multiplier": math.nan})
    assert c.metrics()["steps"] == 2


def test_a_checkpoint_is_loaded_in_a_run_with_another_window() -> None:
    noise = random.Random(0)
    c = constraint(filter=Mean(6))
    follow(c, [noise.gauss(0, 1) for _ in range(9)])
    shorter = constraint(filter=Mean(2))
    shorter.load_state_dict(c.state_dict())
    follow(shorter, [0.0, 3.0])
    assert shorter.metrics()["violation"] == pytest.approx(-0.5)
    for before, after, kept in ((6, 2, [3.0, 4.0]), (2, 6, [0.0, 3.0, 4.0])):
        c, other = (constraint(filter=Mean(w), alpha=torch.ones(2)) for w in (before, after))
        follow(c, [torch.full((2,), v) for v in (9.0, 0.0, 3.0)])
        other.load_state_dict(c.state_dict())
        violation = follow(other, [torch.full((2,), 4.0)])["violation"]
        assert violation == pytest.approx(1 - sum(kept) / len(kept))


def test_what_was_observed_before_loading_is_gone() -> None:
    c = constraint()
    state = c.state_dict()
    c.observe(-9.0)
    c.load_state_dict(state)
    assert c.observed == 0
