"""The objective, the measure and the multiplier of a run, step by step."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from torch_alm import ALMConstraint

Series = dict[str, list[float]]


class Trace:
    """The record of one run.

    Args:
        constraints: what the run is held to, by name.

    Attributes:
        objective: the objective, per step.
        measured: per constraint, its measure in each step.
        multiplier: per constraint, its multiplier after each step.
    """

    def __init__(self, constraints: Mapping[str, ALMConstraint]) -> None:
        self.constraints = constraints
        self.objective: list[float] = []
        self.measured: Series = {name: [] for name in constraints}
        self.multiplier: Series = {name: [] for name in constraints}

    def note(self, objective: Tensor) -> None:
        """Record the step that was just taken."""
        self.objective.append(objective.item())
        for name, constraint in self.constraints.items():
            self.measured[name].append(constraint.metrics()["value"])
            self.multiplier[name].append(float(constraint.multiplier))
