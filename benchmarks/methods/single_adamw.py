"""Single AdamW: the sum of both losses, one optimizer state."""

from __future__ import annotations

from benchmarks.methods.joint import JointMethod
from benchmarks.methods.registry import register


@register("single_adamw", "Single AdamW", position=20)
class SingleAdamW(JointMethod):
    """One AdamW step on L_r - weight * L_f (SAUL, appendix on standard baselines)."""
