"""Two processes: the same multiplier on both, and the one that a single process would have."""

import math
import warnings
from typing import Any

import pytest
import torch

from tests.core.distributed.ranks import Ranks
from torch_alm import ALMConstraint, ConstraintGroup
from torch_alm.filters import Mean

STEPS = 12
VALUES = [  # by rank, step and micro-batch: below alpha first, then above, then below
    [[0.3 * r + 0.9 * k + (3.0 if 2 <= s < 8 else -1.0) for k in range(2)] for s in range(STEPS)]
    for r in range(2)
]


def scalar() -> ALMConstraint:
    return ALMConstraint(None, alpha=1.0, mu=0.5, filter=Mean(3, deadband=0.2))


def vector() -> ALMConstraint:
    return ALMConstraint(None, alpha=torch.tensor([1.0, 0.0, 2.0]), mu=0.5, filter=Mean(2))


def follow_scalar(ranks: list[int]) -> list[float]:
    c, found = scalar(), []
    for s in range(STEPS):
        for r in ranks:
            for k, value in enumerate(VALUES[r][s]):
                c.observe(value, weight=1.0 + k)
        found.append(c.step())
    return found


def follow_index(ranks: list[int]) -> list[list[float]]:
    """Rank r sees entries r and r + 1: the middle one is seen by both."""
    c, found = vector(), []
    for s in range(STEPS):
        for r in ranks:
            c.observe(torch.tensor(VALUES[r][s]), index=[r, r + 1])
        found.append(c.step().tolist())
    return found


def gradients(rank: int) -> list[float]:
    """The weight in the penalty's gradient is that of both ranks' mean."""
    x = torch.tensor(0.0, requires_grad=True)
    c = ALMConstraint(lambda v: x + v, alpha=1.0, mu=0.5)
    found = []
    for value in ([0.0, -2.0], [4.0, 0.0], [0.0, math.nan], [1.0, 1.0]):
        x.grad = None
        c(value[rank]).backward()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            weight = c.step()
        found += [0.0 if x.grad is None else -x.grad.item(), weight, c.multiplier]
    return found


def one_is_blind(rank: int) -> list[Any]:
    """One rank measures NaN: both skip that one, both count it."""
    c = scalar()
    said = []
    for value in (0.0, math.nan, 0.5):
        c.observe(value if rank == 1 else 0.25)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            c.step()
        said.append(len(caught))
    return [c.multiplier, c.skipped, said]


def in_any_order(rank: int) -> dict[str, float]:
    """A group that each rank builds in another order."""
    names = ["a", "b"] if rank == 0 else ["b", "a"]
    group = ConstraintGroup({name: ALMConstraint(None, 1.0, 0.5) for name in names})
    group.observe({"a": 0.0, "b": -2.0 * rank})
    return group.step()


def everything(rank: int) -> dict[str, Any]:
    return {
        "scalar": follow_scalar([rank]),
        "index": follow_index([rank]),
        "gradients": gradients(rank),
        "blind": one_is_blind(rank),
        "group": in_any_order(rank),
    }


@pytest.fixture(scope="module")
def found(ranks: Ranks) -> list[dict[str, Any]]:
    return ranks(everything)


@pytest.mark.parametrize("case", ["scalar", "index", "blind", "group"])
def test_ranks_agree(found: list[dict[str, Any]], case: str) -> None:
    assert found[0][case] == found[1][case]


def test_a_number_equals_the_single_process(found: list[dict[str, Any]]) -> None:
    alone = follow_scalar([0, 1])
    assert found[0]["scalar"] == pytest.approx(alone, abs=1e-12)
    assert 0.0 in alone and max(alone) > 0, "the gate closes and opens"


def test_a_vector_by_index_equals_the_single_process(found: list[dict[str, Any]]) -> None:
    alone = follow_index([0, 1])
    for row, expected in zip(found[0]["index"], alone, strict=True):
        assert row == pytest.approx(expected, abs=1e-6)


def test_the_penaltys_gradient_is_the_weight_of_all_ranks(found: list[dict[str, Any]]) -> None:
    # values (0, -2): c = 2; (4, 0): c = -1; (0, NaN): c = 1 of the finite one; (1, 1): c = 0
    # What is not finite costs nothing, on all ranks alike: an engine waits for the same backward.
    expected = [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert found[0]["gradients"] == found[1]["gradients"] == expected


def test_a_measurement_that_is_not_finite_on_one_rank_is_skipped_on_all(
    found: list[dict[str, Any]],
) -> None:
    multiplier, skipped, said = found[0]["blind"]
    c = scalar()
    for value in (0.125, 0.25, 0.375):
        c.observe(value)
        c.step()
    assert multiplier == pytest.approx(c.multiplier, abs=1e-12)
    assert skipped == 1 and said == [0, 1, 0]


def test_a_group_is_visited_by_name(found: list[dict[str, Any]]) -> None:
    assert found[0]["group"] == {"a": 0.5, "b": 1.0}
