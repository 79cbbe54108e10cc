"""Numbers that a constraint takes, of any kind, and the mean of measurements from anywhere."""

import io
import math
from fractions import Fraction
from itertools import zip_longest
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from torch_alm import ALMConstraint
from torch_alm._constraint import observations
from torch_alm._constraint.observations import Observation, mean
from torch_alm.filters import Mean
from torch_alm.rules import Cap, Hold, Leak, PenaltyGrowth, WarmUp

FLOATS: dict[str, Any] = {
    "float": float,
    "Fraction": Fraction,
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "0-d array": np.array,
    "float64 tensor": lambda v: torch.tensor(v, dtype=torch.float64),
    "float32 tensor": torch.tensor,
    "bfloat16 tensor": lambda v: torch.tensor(v, dtype=torch.bfloat16),
    "with a graph": lambda v: torch.tensor(v, requires_grad=True) * 1.0,
}
INTS: dict[str, Any] = {
    "int": int, "int64": np.int64, "uint8": np.uint8, "0-d array": np.array,
    "tensor": torch.tensor, "int32 tensor": lambda v: torch.tensor(v, dtype=torch.int32),
}  # fmt: skip


def loaded(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def made(real: Any, whole: Any) -> ALMConstraint:
    """All there is to set, in numbers of these types."""
    rules = (
        WarmUp(whole(2)),
        Hold(real(0.5)),
        Leak(real(0.25), whole(2)),
        Cap(real(8.0)),
        PenaltyGrowth(real(2.0), limit=real(4.0), progress=real(0.5)),
    )
    given = {"alpha": 1.5, "mu": 0.5, "multiplier": 0.25, "tolerance": 0.125}
    numbers = {name: real(value) for name, value in given.items()}
    window = Mean(whole(3), real(0.5))
    return ALMConstraint(None, **numbers, every=whole(2), filter=window, rules=rules)


def assert_plain(state: Any) -> None:
    """Nothing but what Python has, and float64 tensors."""
    for entry in state.values() if isinstance(state, dict) else state:
        if isinstance(entry, (dict, list)):
            assert_plain(entry)
        elif isinstance(entry, torch.Tensor):
            assert entry.dtype == torch.float64 and not entry.requires_grad
        else:
            assert type(entry) in (float, int, bool, str, type(None))


@pytest.mark.parametrize(("real", "whole"), [*zip_longest(FLOATS, INTS, fillvalue="int")])
def test_numbers_of_any_type_control_as_floats_do(real: str, whole: str) -> None:
    plain, other = made(float, int), made(FLOATS[real], INTS[whole])
    measured = float if real == "Fraction" else FLOATS[real]
    for value in (0.5, -1.0, 2.0, 1.25, 3.0, 0.0):
        for weight in (1.0, 0.25):
            plain.observe(value * weight, weight=weight)
            other.observe(measured(value * weight), weight=FLOATS[real](weight))
        if value == 2.0:
            plain.alpha, other.alpha = 1.0, FLOATS[real](1.0)
        found = other.preview()
        assert other.step() == found == plain.step() and type(found) is float
    assert str(other.state_dict()) == str(plain.state_dict())
    assert str(other.metrics()) == str(plain.metrics())
    assert_plain(other.state_dict())
    resumed = made(FLOATS[real], INTS[whole])
    resumed.load_state_dict(loaded(other.state_dict()))
    assert str(resumed.state_dict()) == str(plain.state_dict())


@pytest.mark.parametrize("kind", FLOATS)
def test_a_vector_takes_them_too(kind: str) -> None:
    for alpha in (np.array([1.0, 2.0]), torch.tensor([1.0, 2.0], requires_grad=True) * 1.0):
        c = ALMConstraint(None, alpha=alpha, mu=FLOATS[kind](0.5), filter=Mean(2))
        c.observe(np.array([0.0, 0.0], dtype=np.float32), weight=FLOATS[kind](2.0))
        assert c.step().tolist() == [0.5, 1.0]
        c.alpha = FLOATS[kind](0.0)
        c.observe(np.array([0.0, 1.0]))
        c.step()
        assert_plain(loaded(c.state_dict()))
        assert c.multiplier.dtype == torch.float64


ONE = torch.Size()


def test_numbers_on_a_device_are_fetched_together_with_those_of_the_host() -> None:
    """Tensors without dimensions stand for a device's: those of the host are numbers before."""
    values = [torch.tensor(0.5), 0.1, torch.tensor(-2.0, dtype=torch.float64)]
    parts = [Observation(v, weight) for v, weight in zip(values, (1, 2, 1), strict=True)]
    expected = (0.5 + 2 * 0.1 - 2.0) / 4
    assert mean(parts, ONE, 0.0) == observations.Mean(expected, True, 0)
    bad = Observation(torch.tensor(math.nan), 5.0)
    assert mean([bad, Observation(0.1, 2.0)], ONE, 0.0) == observations.Mean(0.1, True, 1)


def test_a_bad_entry_is_counted_where_another_micro_batch_makes_up_for_it() -> None:
    c = ALMConstraint(None, alpha=torch.zeros(2), mu=1.0)
    c.observe(torch.tensor([math.nan, -1.0]))
    c.observe(torch.tensor([-2.0, -3.0]))
    with pytest.warns(UserWarning, match=r"1 measurement.*\(1 so far\)"):
        assert c.step().tolist() == [2.0, 2.0]
    assert c.skipped == 1


@pytest.mark.parametrize("no_gradient", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("mu", [0.5, "auto"])
def test_a_validation_with_the_same_loss_leaves_training_as_it_is(
    no_gradient: Any, mu: float | Literal["auto"]
) -> None:
    """The validation set is far easier: averaged in, it would close the gate."""

    def train(*, validate: bool) -> list[Any]:
        theta = torch.zeros(2, requires_grad=True)
        optimizer = torch.optim.Adam([theta], lr=0.05)
        constraint = ALMConstraint(lambda shift: theta.sum() + shift, 1.0, mu)
        constraint.attach(optimizer)

        def loss(shift: float) -> torch.Tensor:
            return theta.square().sum() + constraint(shift)

        for _ in range(80):
            optimizer.zero_grad()
            loss(0.0).backward()
            optimizer.step()
            if validate:
                with no_gradient():
                    assert loss(5.0).isfinite()
        return [*theta.tolist(), str(constraint.state_dict())]

    with_it, without = train(validate=True), train(validate=False)
    assert with_it == without


def test_a_look_asks_no_other_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank may validate alone; the penalty is that of its own value."""

    def refuse(_: Tensor) -> Tensor:
        raise AssertionError("a reduction over ranks")

    monkeypatch.setattr(observations, "is_distributed", lambda: True)
    monkeypatch.setattr(observations, "sum_over_ranks", refuse)
    constraint = ALMConstraint(lambda x: x, 1.0, 0.5, multiplier=0.25)
    with torch.no_grad():
        found = constraint(torch.tensor(0.5))
    assert found.item() == ((0.25 + 0.5 * 0.5) ** 2 - 0.25**2) / (2 * 0.5)
    with pytest.raises(AssertionError, match="a reduction"):
        constraint(torch.tensor(0.5, requires_grad=True))
