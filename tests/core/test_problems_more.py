"""The further problems are those of the literature, as far as SciPy can tell from their starts."""

import pytest
import torch

from tests.problems import slsqp
from tests.problems.problems import MORE, Problem

# From the published start SLSQP ends in another local optimum, or nowhere.
ELSEWHERE = {"HS16", "HS33", "HS61"}


def value(problem: Problem, x: torch.Tensor) -> float:
    return float(problem.objective(x))


@pytest.mark.parametrize("problem", [p for p in MORE if p.name not in ELSEWHERE], ids=repr)
def test_scipy_finds_the_published_optimum(problem: Problem) -> None:
    x = torch.tensor(slsqp.optimum(problem))
    assert value(problem, x) == pytest.approx(problem.optimum, rel=1e-6, abs=1e-6)
    _, residual = slsqp.multipliers(problem, x.numpy())
    assert residual <= 2e-3, "the point found is stationary"


@pytest.mark.parametrize(
    ("name", "x"),
    [
        ("HS16", (0.5, 0.25)),
        ("HS33", (0.0, 2**0.5, 2**0.5)),
        ("HS61", (5.3267703, -2.1189986, 3.2104642)),
    ],
)
def test_the_published_optimum_is_feasible_and_has_the_published_value(
    name: str, x: tuple[float, ...]
) -> None:
    problem = next(p for p in MORE if p.name == name)
    at = torch.tensor(x, dtype=torch.float64)
    assert value(problem, at) == pytest.approx(problem.optimum, rel=1e-6)
    parts = [torch.zeros(1, dtype=torch.float64)]
    if problem.at_least is not None:
        parts.append((-problem.at_least(at)).clamp(min=0))
    if problem.equal is not None:
        parts.append(problem.equal(at).abs())
    assert torch.cat(parts).max() <= 1e-5
