"""Optima and multipliers that are known: by hand, and by the literature."""

import math
from functools import cache

import pytest
import torch
from torch.optim import SGD

from tests.problems.problems import EASY, Problem, Solution, constrained, solve_side_by_side, vector
from torch_alm import ALMConstraint
from torch_alm.rules import PenaltyGrowth


@cache
def solved() -> dict[str, Solution]:
    """All of them with the one default. Do not change them."""
    found = dict[str, Solution]()
    for steps, is_curved in ((3500, True), (1000, False)):  # the first follow a curve
        chosen = [problem for problem in EASY if (problem.at_least is None) is is_curved]
        posed = [(problem, constrained(problem, mu=1.0, every=25)) for problem in chosen]
        found |= zip(map(repr, chosen), solve_side_by_side(posed, steps), strict=True)
    return found


@pytest.mark.parametrize("problem", EASY, ids=repr)
def test_one_default_finds_optimum_and_multipliers(problem: Problem) -> None:
    solution = solved()[problem.name]
    assert max(solution.violation, solution.gap) <= 1e-3
    assert solution.multipliers.tolist() == pytest.approx(problem.multipliers, abs=1e-3)


def test_a_rescaled_constraint_has_a_rescaled_multiplier() -> None:
    def scaled(factor: float) -> Problem:
        return Problem(
            "scaled", (0.0,), lambda x: (x[0] - 3) ** 2, 4.0, vector(lambda a: factor * (1 - a))
        )

    posed = {
        factor: (scaled(factor), constrained(scaled(factor), mu=mu, every=20))
        for factor, mu in ((1.0, 1.0), (1000.0, 1e-6), (0.001, 1e6))
    }
    found = solve_side_by_side([*posed.values()], steps=800)
    assert all(solution.gap <= 1e-3 for solution in found)
    rescaled = [s.multipliers.item() * f for f, s in zip(posed, found, strict=True)]
    assert rescaled == pytest.approx([4.0] * 3, abs=1e-2)


def test_growth_rescues_a_penalty_that_is_too_small() -> None:
    problem = Problem(
        "badly scaled", (0.0,), lambda x: (x[0] - 3) ** 2, 4.0, vector(lambda a: 0.01 * (1 - a))
    )
    grows = {"rules": [PenaltyGrowth(factor=10.0, limit=1e4)], "tolerance": 1e-6}
    posed = [(problem, constrained(problem, mu=1.0, every=20, **more)) for more in ({}, grows)]
    stuck, grown = solve_side_by_side(posed, steps=800)
    assert stuck.gap > 0.1 and grown.gap <= 1e-3
    assert grown.multipliers.item() == pytest.approx(400.0, rel=1e-2)
    assert 1.0 < grown.group["at least"].mu <= 1e4


def test_an_infeasible_pair_is_reported_and_nothing_overflows() -> None:
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    pair = [
        ALMConstraint(lambda: x[0], alpha=1.0, mu=1.0, sense=">="),
        ALMConstraint(lambda: x[0], alpha=-1.0, mu=1.0, sense="<="),
    ]
    sgd = SGD([x], lr=0.01)
    seen = []
    for _ in range(400):
        sgd.zero_grad()
        (x.square().sum() + sum(c() for c in pair)).backward()
        sgd.step()
        for c in pair:
            c.step()
        seen.append(pair[0].metrics()["status"])
    assert {c.metrics()["status"] for c in pair} == {"suspected_infeasible"}
    assert seen[0] == seen[200] == "violated", "not before there was time to see"
    assert all(math.isfinite(c.multiplier) for c in pair)
    assert abs(x.item()) < 0.1
