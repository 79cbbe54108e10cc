"""Forgetting enough, and no more than necessary: constraints with a price for PyTorch.

`ALMConstraint` says *at least this much, and no more*; `SAM` and `ReverseSAM` take gradients at the
worst or the most forgiving nearby point; `DualOptimizer` keeps two optimizer states over one set of
weights. Together they are SAUL, Algorithm 1 of the paper. Apart, each drops into your own loop.
"""

from torch_alm import measures, thresholds
from torch_alm._control.best import Best
from torch_alm._control.growth import PenaltyGrowth
from torch_alm._control.release import Release
from torch_alm.constraint import ALMConstraint
from torch_alm.dual import DualOptimizer, Losses
from torch_alm.group import ConstraintGroup
from torch_alm.perturb import Perturbation, perturbed
from torch_alm.sam import SAM, ReverseSAM

__version__ = "0.1.0"

__all__ = [
    "SAM",
    "ALMConstraint",
    "Best",
    "ConstraintGroup",
    "DualOptimizer",
    "Losses",
    "PenaltyGrowth",
    "Perturbation",
    "Release",
    "ReverseSAM",
    "measures",
    "perturbed",
    "thresholds",
]
