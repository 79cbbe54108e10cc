"""Gradient ascent: raise the forget loss, and nothing else."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from benchmarks.methods.joint import JointMethod
from benchmarks.methods.method import Batch
from benchmarks.methods.registry import register
from torch_alm.measures import token_nll


@register("grad_ascent", "GradAscent", position=10)
class GradAscent(JointMethod):
    """U = -L_f and no retain direction: with a closed gate the weights stay where they are."""

    keeps_retain: ClassVar[bool] = False

    def objective(self, forget: Batch) -> tuple[Tensor, Tensor]:
        value = token_nll(self.model, forget)
        return -value, value
