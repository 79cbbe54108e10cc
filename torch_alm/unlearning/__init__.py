"""Unlearn, evaluate and attack a language model from Python, with rows in memory."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_alm.unlearning.errors import Refusal
    from torch_alm.unlearning.options import Options
    from torch_alm.unlearning.outcome import Outcome
    from torch_alm.unlearning.verbs import attack, evaluate, resume, unlearn

__all__ = ["Options", "Outcome", "Refusal", "attack", "evaluate", "resume", "unlearn"]
_MODULES = {"Options": "options", "Outcome": "outcome", "Refusal": "errors"}


def __getattr__(name: str) -> Any:
    """Import a name when it is used: the command's help does without torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'verbs')}"), name)


def __dir__() -> list[str]:
    """Names for completion."""
    return sorted({*globals(), *__all__})
