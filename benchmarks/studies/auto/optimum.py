"""The optimum of a problem, by SciPy on all of its data: a reference without a multiplier."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from benchmarks.studies.auto.problem import Problem, normal, seeded
from benchmarks.studies.controllers.slsqp import gradient_of, value_of

Function = Callable[[Tensor], Tensor]


class Optimum(NamedTuple):
    """f at the optimum, and the scales that errors are measured in."""

    value: float
    gap: float  # max(|f_0 - f*|, |f_free - f*|)
    size: Tensor  # max(|alpha|, |c_0|), one per constraint
    theta: Tensor | None = None  # none is known where the optimum is a bound


def constrained(problem: Problem, tries: int = 3) -> tuple[float, Tensor]:
    """The best feasible value that SLSQP finds from the start and points around it, and where."""

    def objective(x: Tensor) -> Tensor:
        return problem.objective(problem.lower(x), problem.data)

    def part(which: int, sign: float) -> Function:
        return lambda x: sign * problem.smooth(x)[which]

    sides = [("ineq", part(0, -1.0)), ("eq", part(1, 1.0))]
    first = problem.lift(problem.start)
    sizes = [len(side(first)) for _, side in sides]
    rules = [
        {"type": kind, "fun": value_of(side), "jac": gradient_of(side)}
        for (kind, side), size in zip(sides, sizes, strict=True)
        if size
    ]
    found = []
    for seed in range(tries):
        x = first + 0.3 * (seed > 0) * normal(seeded(seed), len(first))
        end = minimize(
            value_of(objective), x.numpy(), jac=gradient_of(objective), constraints=rules,
            method="SLSQP", options={"maxiter": 1000, "ftol": 1e-12},
        )  # fmt: skip
        point = torch.from_numpy(end.x)
        below, equal = problem.smooth(point)
        worst = torch.cat([below.clamp(min=0), equal.abs()]).max()
        if worst <= 1e-6 * max(map(abs, problem.alpha)):
            found.append((float(objective(point)), problem.lower(point)))
    return min(found, key=lambda pair: pair[0])


def free(problem: Problem) -> float:
    """The objective's least value without the constraint, or as far down as 500 steps lead."""
    f: Function = lambda x: problem.objective(x, problem.data)  # noqa: E731
    start = problem.start.numpy()
    end = minimize(
        value_of(f), start, jac=gradient_of(f), method="L-BFGS-B", options={"maxiter": 500}
    )
    return float(end.fun) if np.isfinite(end.fun) else float(f(problem.start))


def optimum(problem: Problem) -> Optimum:
    first = float(problem.objective(problem.start, problem.data))
    c = problem.violation(problem.measure(problem.start, problem.data))
    size = torch.maximum(problem.thresholds().abs(), c.abs())
    if problem.lower_bound is not None:
        chance = float(torch.log(torch.tensor(4.0)))
        return Optimum(problem.lower_bound, max(chance, abs(first)), size)
    best, theta = constrained(problem)
    return Optimum(best, max(abs(first - best), abs(free(problem) - best)), size, theta)


def multiplier(problem: Problem, theta: Tensor) -> Tensor:
    """The lambda with which objective and constraints, those that bind, cancel at the optimum."""
    value, slope = _at(lambda x: problem.violation(problem.measure(x, problem.data)), theta)
    _, down = _at(lambda x: problem.objective(x, problem.data), theta)
    slope = slope * (value > -1e-6 * problem.thresholds().abs())[:, None]
    return torch.linalg.lstsq(slope.T, -down[:, None], driver="gelsd").solution[:, 0]


def _at(f: Function, theta: Tensor) -> tuple[Tensor, Tensor]:
    return f(theta), torch.autograd.functional.jacobian(f, theta)
