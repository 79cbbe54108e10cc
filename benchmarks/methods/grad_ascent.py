"""Gradient ascent: raise the forget loss, and nothing else."""

from typing import ClassVar

from benchmarks.methods.joint import JointMethod
from benchmarks.methods.method import register


@register("grad_ascent", "GradAscent", position=10)
class GradAscent(JointMethod):
    """U = -L_f and no retain direction: with a closed gate the weights stay where they are."""

    keeps_retain: ClassVar[bool] = False
