"""The library's `mu="auto"` next to the rule by hand, on the study's problems."""

from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.studies.auto.choose import Portfolio
from benchmarks.studies.auto.classify import NeymanPearson, Recall
from benchmarks.studies.auto.policies import MaximumEntropy
from benchmarks.studies.auto.problem import Problem, seeded
from benchmarks.studies.auto.settings import SETTINGS
from tests.benchmarks.studies.plain_loop import path
from torch_alm import ALMConstraint, ConstraintGroup

LENGTH = 130


def by_the_library(problem: Problem, setting: str) -> list[Tensor]:
    theta = problem.start.clone().requires_grad_()
    optimizer = SETTINGS[setting].optimizer(theta, problem.rate, 1.0)
    each = enumerate(zip(problem.alpha, problem.sense, strict=True))
    group = ConstraintGroup(
        {
            str(i): ALMConstraint(lambda F, i=i: F[i], alpha, "auto", sense=sense)
            for i, (alpha, sense) in each
        }
    )
    group.attach(optimizer)
    seen = []
    for data in islice(problem.draws(seeded(0)), LENGTH):
        optimizer.zero_grad()
        (problem.objective(theta, data) + group(problem.measure(theta, data))).backward()
        optimizer.step()
        seen.append(theta.detach().clone())
    return seen


@pytest.mark.parametrize("setting", ["momentum", "adamw", "rmsprop"])
@pytest.mark.parametrize("kind", [MaximumEntropy, Recall, Portfolio, NeymanPearson])
def test_both_take_theta_the_same_way(kind: Any, setting: str) -> None:
    problem = kind()
    found, expected = by_the_library(problem, setting), path(problem, setting, LENGTH)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(found[-1], problem.start)
