"""The optimum and the multipliers of a problem, by SciPy. Imports nothing of ours."""

from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize, nnls


def gradient_of(function: Any) -> Any:
    """The Jacobian by torch, for SciPy."""
    return lambda x: torch.autograd.functional.jacobian(function, torch.tensor(x)).numpy()


def value_of(function: Any) -> Any:
    return lambda x: function(torch.tensor(x)).detach().numpy()


def optimum(problem: Any) -> np.ndarray:
    """x by SLSQP; whether it converged is judged by residuals, not by its flag."""
    kinds = {"ineq": problem.at_least, "eq": problem.equal}
    constraints = [
        {"type": kind, "fun": value_of(function), "jac": gradient_of(function)}
        for kind, function in kinds.items()
        if function is not None
    ]
    found = minimize(
        value_of(problem.objective),
        np.array(problem.start),
        jac=gradient_of(problem.objective),
        constraints=constraints,
        method="SLSQP",
        options={"ftol": 1e-13, "maxiter": 200},
    )
    return found.x


def multipliers(problem: Any, x: np.ndarray, active: float = 1e-6) -> tuple[dict[str, Any], float]:
    """Multipliers by name, and how far they leave the Lagrangian's gradient from zero.

    Inequalities (g >= 0, multiplier >= 0) enter as -g, equalities as -h: the sign that a violation
    of `alpha - F` has. Non-negative least squares, an equality as the difference of two.
    """
    gradient = gradient_of(problem.objective)(x)
    columns, places, found = [], [], {}
    for name, function in (("at least", problem.at_least), ("equal", problem.equal)):
        if function is None:
            continue
        values, jacobian = value_of(function)(x), gradient_of(function)(x)
        found[name] = np.zeros(len(values))
        for i, value in enumerate(values):
            for sign in (1.0, -1.0) if name == "equal" else (1.0,) if value <= active else ():
                columns.append(sign * jacobian[i])
                places.append((name, i, sign))
    solution, residual = nnls(np.array(columns).T, gradient)
    for (name, i, sign), multiplier in zip(places, solution, strict=True):
        found[name][i] += sign * multiplier
    return found, residual
