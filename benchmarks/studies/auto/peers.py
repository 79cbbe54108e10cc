"""Two published libraries on the same copies, run as they are; their settings are their defaults.

cooper has no default for its dual rate, so it is run with two. humancompatible-train's `ALM` has
no penalty by default, so it is run with and without. Its module has to be importable.
"""

from __future__ import annotations

from typing import Any

import cooper
import torch
from cooper.formulations import AugmentedLagrangian
from cooper.multipliers import DenseMultiplier
from cooper.penalty_coefficients import (
    DensePenaltyCoefficient,
    MultiplicativePenaltyCoefficientUpdater,
)
from torch import Tensor

from benchmarks.studies.auto.engine import Part

KIND = cooper.ConstraintType


class Cooper(cooper.ConstrainedMinimizationProblem):
    """An augmented Lagrangian with a growing penalty, stepped every step."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def begin(self, part: Part) -> None:
        for j, sense in enumerate(part.problem.sense):
            setattr(self, f"constraint{j}", self.constraint(sense == "==", part))
        self.updater = MultiplicativePenaltyCoefficientUpdater()
        self.dual = torch.optim.SGD(self.dual_parameters(), lr=self.rate, maximize=True)

    @staticmethod
    def constraint(equality: bool, part: Part) -> cooper.Constraint:
        dtype = part.dtype
        return cooper.Constraint(
            constraint_type=KIND.EQUALITY if equality else KIND.INEQUALITY,
            formulation_type=AugmentedLagrangian,
            multiplier=DenseMultiplier(num_constraints=part.rows, dtype=dtype),
            penalty_coefficient=DensePenaltyCoefficient(torch.ones(part.rows, dtype=dtype)),
        )

    def compute_cmp_state(self, c: Tensor) -> cooper.CMPState:
        observed = {
            getattr(self, f"constraint{j}"): cooper.ConstraintState(violation=column)
            for j, column in enumerate(c.unbind(1))
        }
        return cooper.CMPState(loss=c.new_zeros(()), observed_constraints=observed)

    def loss(self, c: Tensor) -> Tensor:
        self.state = self.compute_cmp_state(c)
        return self.state.compute_primal_lagrangian().lagrangian

    def after_step(self) -> None:
        self.dual.zero_grad()
        self.state.compute_dual_lagrangian().backward()
        self.dual.step()
        for constraint in self.constraints():
            constraint.multiplier.post_step_()
        self.updater.step(self.state.observed_constraints)


class HumanCompatible:
    """`ALM`, one dual variable per copy, stepped every step."""

    def __init__(self, penalty: float) -> None:
        self.penalty = penalty

    def begin(self, part: Part) -> None:
        from humancompatible.train.dual_optim import ALM

        self.duals: list[Any] = [
            ALM(
                m=part.rows,
                penalty=self.penalty,
                is_ineq=sense != "==",
                init_duals=torch.zeros(part.rows, dtype=part.dtype),
            )
            for sense in part.problem.sense
        ]

    def loss(self, c: Tensor) -> Tensor:
        self.c = c.detach().unbind(1)
        zero = c.new_zeros(())
        each = zip(self.duals, c.unbind(1), strict=True)
        return torch.stack([dual.forward(zero, column) for dual, column in each]).sum()

    def after_step(self) -> None:
        for dual, column in zip(self.duals, self.c, strict=True):
            dual.update(column)
