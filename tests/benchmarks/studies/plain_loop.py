"""A problem of the study solved by the rule by hand, without the study's engine."""

from itertools import islice

from torch import Tensor

from benchmarks.studies.auto.problem import Problem, seeded
from benchmarks.studies.auto.settings import SETTINGS
from tests.auto_oracle import solve


def path(problem: Problem, setting: str, length: int = 130) -> list[Tensor]:
    """Theta after each step."""
    theta = problem.start.clone().requires_grad_()
    return solve(
        theta,
        SETTINGS[setting].optimizer(theta, problem.rate, 1.0),
        lambda data: problem.objective(theta, data),
        lambda data: problem.violation(problem.measure(theta, data)),
        problem.sense,
        list(islice(problem.draws(seeded(0)), length)),
    )
