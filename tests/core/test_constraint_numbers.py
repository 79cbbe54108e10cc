"""Every number a constraint takes may be one of Python, of NumPy, or a tensor."""

import io
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_alm import ALMConstraint
from torch_alm.filters import Mean
from torch_alm.rules import Cap, Hold, Leak, PenaltyGrowth, WarmUp

thorough = settings(max_examples=30, derandomize=True, deadline=None)

# Exact in every type, so that one and the same number can be given in each.
REALS = st.integers(-64, 64).map(lambda k: k / 8)
SHARES = st.sampled_from([0.125, 0.25, 0.5, 0.875])
COUNTS = st.integers(1, 4)
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
    "int": int,
    "int64": np.int64,
    "uint8": np.uint8,
    "0-d array": np.array,
    "tensor": torch.tensor,
    "int32 tensor": lambda v: torch.tensor(v, dtype=torch.int32),
}
MEASURED = {name: kind for name, kind in FLOATS.items() if name != "Fraction"}


def loaded(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


class Twins:
    """A constraint that is told floats, and one that is told the same in other types."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.plain: dict[str, Any] = {}
        self.other: dict[str, Any] = {}

    def number(self, value: float, kinds: dict[str, Any] = FLOATS) -> Any:
        return kinds[self.data.draw(st.sampled_from(sorted(kinds)))](value)

    def put(self, name: str, values: Any, kinds: dict[str, Any] = FLOATS) -> None:
        self.plain[name] = self.data.draw(values, label=name)
        self.other[name] = self.number(self.plain[name], kinds)

    def both(self) -> tuple[ALMConstraint, ALMConstraint]:
        first, second = ({"mu": 0.5, "alpha": 0.0, **g} for g in (self.plain, self.other))
        return ALMConstraint(None, **first), ALMConstraint(None, **second)


def settings_of(twins: Twins) -> None:
    twins.put("alpha", REALS)
    twins.put("mu", SHARES)
    twins.put("multiplier", SHARES)
    twins.put("tolerance", SHARES)
    twins.put("every", COUNTS, INTS)
    share, count, limit = (twins.data.draw(s) for s in (SHARES, COUNTS, st.sampled_from([8.0, 16])))
    for given_to, number in ((twins.plain, lambda v, _=FLOATS: v), (twins.other, twins.number)):
        given_to["filter"] = Mean(number(1 + count, INTS), number(share))
        given_to["rules"] = (
            WarmUp(number(count, INTS)),
            Hold(number(share)),
            Leak(number(share), number(count, INTS)),
            Cap(number(limit)),
            PenaltyGrowth(number(2.0), limit=number(4.0), progress=number(0.5)),
        )


def assert_plain(state: Any) -> None:
    """Nothing but what Python has, and float64 tensors."""
    for entry in state.values() if isinstance(state, dict) else state:
        if isinstance(entry, (dict, list)):
            assert_plain(entry)
        elif isinstance(entry, torch.Tensor):
            assert entry.dtype == torch.float64 and not entry.requires_grad
        else:
            assert type(entry) in (float, int, bool, str, type(None))


@thorough
@given(st.data())
def test_numbers_of_any_type_control_as_floats_do(data: st.DataObject) -> None:
    twins = Twins(data)
    settings_of(twins)
    plain, other = twins.both()
    for step in range(data.draw(st.integers(1, 6), label="steps")):
        for _ in range(data.draw(st.integers(1, 2))):
            value, weight = data.draw(REALS), data.draw(SHARES)
            plain.observe(value, weight=weight)
            other.observe(twins.number(value, MEASURED), weight=twins.number(weight))
        if step == 2:
            plain.alpha, alpha = 1.5, twins.number(1.5)
            other.alpha = alpha
        assert plain.preview() == other.preview()
        found = other.step()
        assert plain.step() == found and type(found) is float
    assert str(other.state_dict()) == str(plain.state_dict())
    assert str(other.metrics()) == str(plain.metrics())
    assert_plain(other.state_dict())
    resumed = twins.both()[1]
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
