"""Gradient difference: raise the forget loss while lowering the retain loss."""

from __future__ import annotations

from torch import Tensor

from benchmarks.methods.joint import JointMethod
from benchmarks.methods.method import Batch
from benchmarks.methods.registry import register
from torch_alm.measures import token_nll


@register("grad_diff", "GradDiff", position=11)
class GradDiff(JointMethod):
    """U = -L_f beside retain_weight * L_r (TOFU's gradient difference).

    With both weights 1 and AdamW this is Single AdamW's joint step.
    """

    def objective(self, forget: Batch) -> tuple[Tensor, Tensor]:
        value = token_nll(self.model, forget)
        return -value, value
