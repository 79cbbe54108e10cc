"""The study's rule in a plain loop, with `torch.optim` and without the study's engine."""

import torch
from torch import Tensor

from benchmarks.studies.auto.problem import Problem, seeded
from benchmarks.studies.auto.rule import AutoRate, response, steps, sums
from benchmarks.studies.auto.settings import SETTINGS


def path(problem: Problem, setting: str, length: int = 130) -> list[Tensor]:
    """Theta after each step."""
    theta = problem.start.clone().requires_grad_()
    optimizer = SETTINGS[setting].optimizer(theta, problem.rate, 1.0)
    equal = torch.tensor([sense == "==" for sense in problem.sense])
    rule, generator, seen = AutoRate(equal, equal.shape), seeded(0), []
    for _ in range(length):
        data = problem.draw(generator)
        c = problem.violation(problem.measure(theta, data))
        weight = rule.see(c.detach())
        a = torch.stack([torch.autograd.grad(x, theta, retain_graph=True)[0] for x in c])
        optimizer.zero_grad()
        (problem.objective(theta, data) + (weight * c).sum()).backward()
        if rule.wants_gradient:
            grad, ((_, step),) = theta.grad[None], steps(optimizer)
            found = sums(a, grad, weight[:, None])
            rule.calibrate(found, response(a, grad, weight[:, None], step, found.balance[:, None]))
        optimizer.step()
        rule.advance()
        seen.append(theta.detach().clone())
    return seen
