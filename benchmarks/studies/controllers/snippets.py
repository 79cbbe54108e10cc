"""One inequality, `measure(model) >= alpha`, as users type it, with a dual step every 50 steps.

The same loop in each library, written as its documentation does; `code_lines` counts them.
"""

from __future__ import annotations

from typing import Any

import cooper
import torch
from humancompatible.train.dual_optim import ALM
from torch.optim import SGD

from benchmarks.studies.code_lines import code_lines
from torch_alm import ALMConstraint


def plain(model: Any, retain: Any, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        retain(model).backward()
        optimizer.step()


def ours(model: Any, retain: Any, measure: Any, alpha: float, optimizer: Any, steps: int) -> Any:
    constraint = ALMConstraint(measure, alpha=alpha, mu=1.0, every=50)
    for _ in range(steps):
        optimizer.zero_grad()
        (retain(model) + constraint(model)).backward()
        optimizer.step()
        constraint.step()
    return constraint.multiplier


def humancompatible(
    model: Any, retain: Any, measure: Any, alpha: float, optimizer: Any, steps: int
) -> Any:
    dual = ALM(m=1, lr=1.0, penalty=1.0, is_ineq=True, init_duals=0.0, dual_range=(0.0, 1e9))
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        violation = (alpha - measure(model)).reshape(1)
        dual.forward(retain(model), violation).backward()
        optimizer.step()
        if step % 50 == 0:
            dual.update(violation.detach())
    return dual.duals.item()


class CooperProblem(cooper.ConstrainedMinimizationProblem):
    def __init__(self, retain: Any, measure: Any, alpha: float) -> None:
        super().__init__()
        self.retain, self.measure, self.alpha = retain, measure, alpha
        self.constraint = cooper.Constraint(
            constraint_type=cooper.ConstraintType.INEQUALITY,
            formulation_type=cooper.formulations.AugmentedLagrangian,
            multiplier=cooper.multipliers.DenseMultiplier(num_constraints=1),
            penalty_coefficient=cooper.penalty_coefficients.DensePenaltyCoefficient(
                init=torch.tensor(1.0)
            ),
        )

    def compute_cmp_state(self, model: Any) -> cooper.CMPState:
        violation = (self.alpha - self.measure(model)).reshape(1)
        state = cooper.ConstraintState(violation=violation)
        return cooper.CMPState(self.retain(model), {self.constraint: state})


def with_cooper(
    model: Any, retain: Any, measure: Any, alpha: float, optimizer: Any, steps: int
) -> Any:
    problem = CooperProblem(retain, measure, alpha)
    dual = SGD(problem.dual_parameters(), lr=1.0, maximize=True)
    both = cooper.optim.SimultaneousOptimizer(problem, optimizer, dual)
    for step in range(1, steps + 1):
        both.zero_grad()
        state = problem.compute_cmp_state(model)
        state.compute_primal_lagrangian().backward()
        both.primal_step()
        if step % 50 == 0:
            state.compute_dual_lagrangian().backward()
            both.dual_step()
    return problem.constraint.multiplier.weight.item()


LINES = {
    "torch-alm": code_lines(ours) - code_lines(plain) - 1,
    "cooper": code_lines(CooperProblem, with_cooper) - code_lines(plain) - 1,
    "humancompatible": code_lines(humancompatible) - code_lines(plain) - 1,
}
SNIPPETS = {"torch-alm": ours, "cooper": with_cooper, "humancompatible": humancompatible}
