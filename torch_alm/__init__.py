"""Forgetting enough, and no more than necessary: constraints on losses for PyTorch.

`ALMConstraint` says *at least this much, and no more*; `SAM` and `ReverseSAM` take gradients at the
worst or the most forgiving nearby point; `DualOptimizer` keeps two optimizer states over one set of
weights. Together they are SAUL, Algorithm 1 of the paper. Apart, each drops into your own loop.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_alm import filters, measures, rules, thresholds
    from torch_alm.constraint import ALMConstraint
    from torch_alm.dual import DualOptimizer, Losses
    from torch_alm.group import ConstraintGroup
    from torch_alm.perturb import perturbed
    from torch_alm.sam import SAM, ReverseSAM

__version__ = "0.2.0"

__all__ = [
    "SAM",
    "ALMConstraint",
    "ConstraintGroup",
    "DualOptimizer",
    "Losses",
    "ReverseSAM",
    "filters",
    "measures",
    "perturbed",
    "rules",
    "thresholds",
]

_MODULES = {
    "SAM": "sam",
    "ALMConstraint": "constraint",
    "ConstraintGroup": "group",
    "DualOptimizer": "dual",
    "Losses": "dual",
    "ReverseSAM": "sam",
    "perturbed": "perturb",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  # a public name, or a module
    """Import a public name when it is first used, so that the command tells its help without torch.

    Raises:
        AttributeError: there is no such name.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_MODULES.get(name, name)}")
    found = getattr(module, name) if name in _MODULES else module
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Names for completion, imported or not."""
    return sorted({*globals(), *__all__})
