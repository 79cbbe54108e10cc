"""Gradient difference: raise the forget loss while lowering the retain loss."""

from benchmarks.methods.joint import JointMethod
from benchmarks.methods.method import register


@register("grad_diff", "GradDiff", position=11)
class GradDiff(JointMethod):
    """U = -L_f beside retain_weight * L_r (TOFU's gradient difference).

    With both weights 1 and AdamW this is Single AdamW's joint step.
    """
