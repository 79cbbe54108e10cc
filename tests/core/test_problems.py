"""Optima and multipliers that are known: by hand, by the literature, by SciPy."""

import copy
import math
from functools import cache

import numpy as np
import pytest
import torch
from torch.optim import SGD, Adam

from tests.problems import slsqp
from tests.problems.problems import (
    EASY,
    Problem,
    Solution,
    constrained,
    solve,
    solve_side_by_side,
    vector,
)
from torch_alm import ALMConstraint
from torch_alm.filters import Mean
from torch_alm.rules import PenaltyGrowth

# After 4,000 steps these are still on their way: HS21 to 4e-4, the others not near.
UNSETTLED = "HS10", "HS21", "HS50"
SOLVED = [problem for problem in EASY if problem.name not in UNSETTLED]


optimum = cache(slsqp.optimum)


@cache
def solved() -> dict[str, Solution]:
    """Every problem with the one default. Do not change them."""
    posed = [(problem, constrained(problem, mu=1.0, every=50)) for problem in EASY]
    return dict(zip(map(repr, EASY), solve_side_by_side(posed), strict=True))


def test_of_21_problems_19_are_solved_to_a_thousandth_and_18_to_a_hundred_thousandth() -> None:
    errors = [max(each.violation, each.gap) for each in solved().values()]
    assert len(errors) == 21
    assert sum(e <= 1e-3 for e in errors) >= 19 and sum(e <= 1e-5 for e in errors) >= 18


@pytest.mark.parametrize("problem", EASY, ids=repr)
def test_the_problems_are_those_of_the_literature(problem: Problem) -> None:
    x = optimum(problem)
    found = float(problem.objective(torch.tensor(x)))
    assert found == pytest.approx(problem.optimum, abs=2e-7, rel=2e-7)
    _, residual = slsqp.multipliers(problem, x)
    assert residual <= 2e-3, "the point found is stationary"


@pytest.mark.parametrize("problem", SOLVED, ids=repr)
def test_one_default_finds_optimum_and_multipliers(problem: Problem) -> None:
    solution = solved()[problem.name]
    assert max(solution.violation, solution.gap) <= 1e-3
    expected, residual = slsqp.multipliers(problem, optimum(problem))
    assert residual <= 1e-4
    by_name = np.concatenate([expected[name] for name in sorted(expected)])
    assert solution.multipliers.numpy() == pytest.approx(by_name, abs=1e-3)
    assert solution.group.metrics()["kkt_complementarity"] <= 1e-3


def test_side_by_side_each_problem_goes_where_it_goes_alone() -> None:
    posed = [(problem, constrained(problem, mu=1.0, every=50)) for problem in SOLVED]
    together = solve_side_by_side(posed, steps=60)
    for problem, found in zip(SOLVED[:3], together, strict=False):
        alone = solve(problem, steps=60)
        assert torch.equal(found.x, alone.x), problem
        assert torch.equal(found.multipliers, alone.multipliers), problem
    assert any(found.multipliers.any() for found in together[:3])


def stationarity(problem: Problem, solution: Solution) -> float:
    x = solution.x.clone().requires_grad_()
    (problem.objective(x) + solution.group(x)).backward()
    return solution.group.metrics(gradient=[x.grad])["kkt_stationarity"]


def test_stationarity_is_the_gradient_of_the_lagrangian() -> None:
    problem = next(p for p in EASY if p.name == "HS12")
    solution = copy.deepcopy(solved()["HS12"])
    assert stationarity(problem, solution) <= 1e-5
    solution.x.add_(1.0)
    assert stationarity(problem, solution) > 1.0


def test_an_inactive_constraint_leaves_no_trace() -> None:
    problem = Problem("inactive", (0.0,), lambda x: (x[0] - 3) ** 2, 0.0, vector(lambda a: a + 1))
    solution = solve(problem, steps=600)
    assert solution.multipliers.item() == 0.0, "exactly"
    assert solution.gap <= 1e-9
    metrics = solution.group.metrics()
    assert metrics["status"] == "released" and metrics["at least/active_share"] == 0.0


def test_a_rescaled_constraint_has_a_rescaled_multiplier() -> None:
    def scaled(factor: float) -> Problem:
        return Problem(
            "scaled", (0.0,), lambda x: (x[0] - 3) ** 2, 4.0, vector(lambda a: factor * (1 - a))
        )

    posed = {
        factor: (scaled(factor), constrained(scaled(factor), mu=mu, every=50))
        for factor, mu in ((1.0, 1.0), (1000.0, 1e-6), (0.001, 1e6))
    }
    found = solve_side_by_side([*posed.values()], steps=1500)
    assert all(solution.gap <= 1e-3 for solution in found)
    rescaled = [s.multipliers.item() * f for f, s in zip(posed, found, strict=True)]
    assert rescaled == pytest.approx([4.0] * 3, abs=1e-2)


def test_growth_rescues_a_penalty_that_is_too_small() -> None:
    problem = Problem(
        "badly scaled", (0.0,), lambda x: (x[0] - 3) ** 2, 4.0, vector(lambda a: 0.01 * (1 - a))
    )
    grows = {"rules": [PenaltyGrowth(factor=10.0, limit=1e4)], "tolerance": 1e-6}
    posed = [(problem, constrained(problem, mu=1.0, every=50, **more)) for more in ({}, grows)]
    stuck, grown = solve_side_by_side(posed, steps=1500)
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


def test_no_feasible_problem_is_suspected_along_the_way() -> None:
    problems = [problem for problem in EASY if problem.name in ("HS11", "HS14", "HS43")]
    parts = [(p, constrained(p, mu=1.0), p.first().requires_grad_()) for p in problems]
    adam = Adam([x for *_, x in parts], lr=0.02)
    for _ in range(600):
        adam.zero_grad()
        torch.autograd.backward([problem.objective(x) + group(x) for problem, group, x in parts])
        adam.step()
        for problem, group, _ in parts:
            group.step()
            assert group.metrics()["status"] != "suspected_infeasible", problem
    assert len(parts) == 3


def test_a_noisy_active_constraint_is_met_on_average() -> None:
    """min x^2 subject to E[x + noise] >= 1: x = 1, lambda = 2."""
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros((), dtype=torch.float64, requires_grad=True)
    c = ALMConstraint(
        lambda: x + torch.randn((), generator=generator), alpha=1.0, mu=0.1, filter=Mean(50)
    )
    sgd = SGD([x], lr=0.01)
    tail = []
    for step in range(6000):
        sgd.zero_grad()
        (x.square() + c()).backward()
        sgd.step()
        c.step()
        if step >= 3000:
            tail.append((x.item(), c.multiplier))
    means = torch.tensor(tail, dtype=torch.float64).mean(0)
    assert means.tolist() == pytest.approx([1.0, 2.0], abs=0.1)
