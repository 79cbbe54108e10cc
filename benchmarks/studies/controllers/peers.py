"""A constraint in three libraries: ours, cooper, humancompatible-train.

Each class is what a user writes for `min objective(x) subject to at_least(x) >= 0, equal(x) = 0`:
`loss` gives the loss to differentiate, `update` the step of the multipliers that follows. What a
user types for a single inequality is in `benchmarks/studies/controllers/snippets.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import cooper
import torch
from humancompatible.train.dual_optim import ALM
from torch import Tensor
from torch.optim import SGD

from torch_alm import ALMConstraint, ConstraintGroup

Side = Callable[[Tensor], Tensor] | None
FLOAT = torch.float64


class Controller(Protocol):
    """The interface that the comparisons ask of a library."""

    def __init__(self, at_least: Side, equal: Side, mu: float, every: int) -> None: ...

    def loss(self, objective: Tensor, x: Tensor) -> Tensor: ...

    def update(self, step: int) -> None: ...

    @property
    def multipliers(self) -> Tensor: ...


class Ours:
    """torch-alm."""

    def __init__(self, at_least: Side, equal: Side, mu: float, every: int) -> None:
        given = {"at least": (at_least, ">="), "equal": (equal, "==")}
        self.group = ConstraintGroup(
            {
                name: ALMConstraint(measure, alpha=0.0, mu=mu, every=every, sense=sense)
                for name, (measure, sense) in given.items()
                if measure is not None
            }
        )

    def loss(self, objective: Tensor, x: Tensor) -> Tensor:
        return objective + self.group(x)

    def update(self, step: int) -> None:
        self.group.step()

    @property
    def multipliers(self) -> Tensor:
        members = self.group.values()
        return torch.cat([torch.as_tensor(c.multiplier).reshape(-1) for c in members])

    def state_dict(self) -> Any:
        return self.group.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.group.load_state_dict(state)


class CooperProblem(cooper.ConstrainedMinimizationProblem):
    """The problem class that cooper asks for."""

    def __init__(self, measures: list[tuple[Any, bool, int]], mu: float) -> None:
        super().__init__()
        self.measures = [measure for measure, _, _ in measures]
        self.sides = [self.side(equality, size, mu) for _, equality, size in measures]
        for i, side in enumerate(self.sides):
            setattr(self, f"side{i}", side)

    @staticmethod
    def side(equality: bool, size: int, mu: float) -> cooper.Constraint:
        kind = cooper.ConstraintType
        return cooper.Constraint(
            constraint_type=kind.EQUALITY if equality else kind.INEQUALITY,
            formulation_type=cooper.formulations.AugmentedLagrangian,
            multiplier=cooper.multipliers.DenseMultiplier(num_constraints=size, dtype=FLOAT),
            penalty_coefficient=cooper.penalty_coefficients.DensePenaltyCoefficient(
                init=torch.tensor(mu, dtype=FLOAT)
            ),
        )

    def compute_cmp_state(self, objective: Tensor, x: Tensor) -> cooper.CMPState:
        observed = {
            side: cooper.ConstraintState(violation=-measure(x).reshape(-1))
            for side, measure in zip(self.sides, self.measures, strict=True)
        }
        return cooper.CMPState(loss=objective, observed_constraints=observed)


class Cooper:
    """cooper, by the public pieces of its optimizers: `roll` takes no cadence."""

    momentum = 0.0

    def __init__(self, at_least: Side, equal: Side, mu: float, every: int) -> None:
        self.given, self.every, self.mu = [(at_least, False), (equal, True)], every, mu
        self.problem: CooperProblem | None = None
        self.state: Any = None

    def build(self, x: Tensor) -> CooperProblem:
        measures = [(f, e, f(x).numel()) for f, e in self.given if f is not None]
        problem = CooperProblem(measures, self.mu)
        self.dual = SGD(
            problem.dual_parameters(), lr=self.mu, maximize=True, momentum=self.momentum
        )
        return problem

    def loss(self, objective: Tensor, x: Tensor) -> Tensor:
        self.problem = self.problem or self.build(x)
        self.state = self.problem.compute_cmp_state(objective, x)
        return self.state.compute_primal_lagrangian().lagrangian

    def update(self, step: int) -> None:
        if (step + 1) % self.every:
            return
        self.dual.zero_grad()
        self.state.compute_dual_lagrangian().backward()
        self.dual.step()
        for side in self.problem.sides:
            side.multiplier.post_step_()

    @property
    def multipliers(self) -> Tensor:
        return torch.cat([side.multiplier.weight.detach() for side in self.problem.sides])

    def state_dict(self) -> Any:
        return {"problem": self.problem.state_dict(), "dual": self.dual.state_dict()}

    def load_state_dict(self, state: Any) -> None:
        self.problem.load_state_dict(state["problem"])
        self.dual.load_state_dict(state["dual"])


class HumanCompatible:
    """humancompatible-train."""

    momentum = 0.0

    def __init__(self, at_least: Side, equal: Side, mu: float, every: int) -> None:
        self.measures = {"equal": equal, "at least": at_least}
        self.every, self.mu = every, mu
        self.dual: ALM | None = None

    def build(self, values: dict[str, Tensor]) -> ALM:
        dual: ALM | None = None
        for name, value in values.items():
            options = {
                "m": value.numel(),
                "lr": self.mu,
                "momentum": self.momentum,
                "init_duals": torch.zeros(value.numel(), dtype=FLOAT),
                "dual_range": (-1e9, 1e9),
                "is_ineq": name == "at least",
            }
            if dual is None:
                dual = ALM(penalty=self.mu, **options)
            else:
                dual.add_constraint_group(name=name, **options)
        return dual

    def loss(self, objective: Tensor, x: Tensor) -> Tensor:
        values = {name: -f(x).reshape(-1) for name, f in self.measures.items() if f is not None}
        self.dual = self.dual or self.build(values)
        self.values = list(values.values())
        return self.dual.forward(objective, torch.cat(self.values))

    def update(self, step: int) -> None:
        if (step + 1) % self.every == 0:
            self.dual.update(torch.cat([value.detach() for value in self.values]))

    @property
    def multipliers(self) -> Tensor:
        return self.dual.duals.detach()

    def state_dict(self) -> Any:
        return self.dual.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.dual.load_state_dict(state)
