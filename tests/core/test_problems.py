"""Optima and multipliers that are known: of Hock and Schittkowski (1981), and by hand."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from torch_alm import ALMConstraint, ConstraintGroup
from torch_alm.rules import PenaltyGrowth

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Problem:
    """min objective(x) subject to at_least(x) >= 0 and equal(x) = 0, functions of coordinates."""

    start: Sequence[float]
    objective: Function
    optimum: float
    multipliers: Sequence[float]
    at_least: Sequence[Function] = ()
    equal: Sequence[Function] = ()
    steps: int = 800


PROBLEMS = {
    "HS14": Problem(
        (2, 2), lambda a, b: (a - 2) ** 2 + (b - 1) ** 2, 9 - 2.875 * 7**0.5,
        [1.8465914, -1.5944911], [lambda a, b: 1 - a**2 / 4 - b**2], [lambda a, b: a - 2 * b + 1],
    ),
    "HS43": Problem(
        (0, 0, 0, 0),
        lambda a, b, c, d: a**2 + b**2 + 2 * c**2 + d**2 - 5 * a - 5 * b - 21 * c + 7 * d,
        -44, [1, 0, 2],
        [lambda a, b, c, d: 8 - a**2 - b**2 - c**2 - d**2 - a + b - c + d,
         lambda a, b, c, d: 10 - a**2 - 2 * b**2 - c**2 - 2 * d**2 + a + d,
         lambda a, b, c, d: 5 - 2 * a**2 - b**2 - c**2 - 2 * a + b + d],
    ),
}  # fmt: skip


def solve(problem: Problem, **settings: object) -> tuple[list[float], float, ConstraintGroup]:
    """Return multipliers, the larger of violation and relative gap, and what was solved with."""
    x, members = torch.tensor(problem.start, dtype=torch.float64, requires_grad=True), {}
    for sense, name in ((">=", "at_least"), ("==", "equal")):
        if parts := getattr(problem, name):
            measure = lambda parts=parts: torch.stack([part(*x) for part in parts])  # noqa: E731
            members[name] = ALMConstraint(measure, 0.0, sense=sense, **settings)
    group, adam = ConstraintGroup(members), torch.optim.Adam([x])
    for step in range(problem.steps):
        adam.param_groups[0]["lr"] = 0.025 * (1 + math.cos(math.pi * step / problem.steps))
        adam.zero_grad()
        (problem.objective(*x) + group()).backward()
        adam.step()
        group.step()
    gap = abs(problem.objective(*x).item() - problem.optimum) / (1 + abs(problem.optimum))
    far = [-part(*x).item() for part in problem.at_least]
    far += [abs(part(*x).item()) for part in problem.equal]
    found = [torch.as_tensor(c.multiplier).reshape(-1) for c in group.values()]
    return torch.cat(found).tolist(), max(gap, *far), group


@pytest.mark.parametrize("name", PROBLEMS)
def test_one_default_finds_optimum_and_multipliers(name: str) -> None:
    multipliers, far, _ = solve(PROBLEMS[name], mu=1.0, every=25)
    assert far <= 1e-3
    assert multipliers == pytest.approx(PROBLEMS[name].multipliers, abs=1e-3)


def scaled(factor: float) -> Problem:
    """The nearest point to 3 that is no larger than 1, with a constraint in other units."""
    bound = [lambda a: factor * (1 - a)]
    return Problem((0.0,), lambda a: (a - 3) ** 2, 4.0, [4.0 / factor], bound)


@pytest.mark.parametrize(("factor", "mu"), [(1000.0, 1e-6), (0.001, 1e6)])
def test_a_rescaled_constraint_has_a_rescaled_multiplier(factor: float, mu: float) -> None:
    (multiplier,), far, _ = solve(scaled(factor), mu=mu, every=20)
    assert far <= 1e-3 and multiplier * factor == pytest.approx(4.0, abs=1e-2)


def test_growth_rescues_a_penalty_that_is_too_small() -> None:
    given = {"mu": 1.0, "every": 20}
    grows = {**given, "rules": [PenaltyGrowth(factor=10.0, limit=1e4)], "tolerance": 1e-6}
    (_, stuck, _), ((multiplier,), grown, group) = (
        solve(scaled(0.01), **g) for g in (given, grows)
    )
    assert stuck > 0.1 and grown <= 1e-3
    assert multiplier == pytest.approx(400.0, rel=1e-2)
    assert 1.0 < group["at_least"].mu <= 1e4
