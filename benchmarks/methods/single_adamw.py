"""Single AdamW: the sum of both losses, one optimizer state."""

from benchmarks.methods.joint import JointMethod
from benchmarks.methods.method import register


@register("single_adamw", "Single AdamW", position=20)
class SingleAdamW(JointMethod):
    """One AdamW step on L_r - weight * L_f (SAUL, appendix on standard baselines)."""
