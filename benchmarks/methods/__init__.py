"""The methods of the paper, each with and without the controller: one registry.

A method is a file in this folder: a subclass of `Method` under `@register(key, label)`. If the
controller is optional, the method also exists as `key+alm`.
"""

import difflib
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from torch import nn

from benchmarks.methods.method import LOSSES, Entry, Method
from benchmarks.methods.retain_only import CONTROL, LABEL, RetainOnly
from benchmarks.methods.rmu import RetainOnlyOnRMU
from benchmarks.methods.settings import Settings, hints

__all__ = [
    "ALM", "CONTROL", "LOSSES", "Method", "Settings", "build", "check_method", "is_controlled",
    "kind_of", "label", "method_of", "names", "settings_of",
]  # fmt: skip

ALM = "+alm"
CONTROLS: dict[str, type[Method]] = {"tokens": RetainOnly, "rmu": RetainOnlyOnRMU}
"""The control by the losses of the methods beside it."""

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def names(losses: str = "tokens") -> list[str]:
    """Return the keys a command line may name, in the order of the tables.

    Args:
        losses: Only methods with these losses, a key of `LOSSES`; `any` lists all.
    """
    entries = sorted(_entries(losses).items(), key=lambda item: item[1].position)
    both = {"optional": ("", ALM)}
    return [k + end for k, entry in entries for end in both.get(entry.method.alm, ("",))]


def _entries(losses: str = "any") -> dict[str, Entry]:
    return LOSSES["rmu"] | LOSSES["tokens"] if losses == "any" else LOSSES[losses]


def check_method(key: str, losses: str = "tokens") -> None:
    """Raise unless `key` is a method with these losses.

    Raises:
        ValueError: It is not; the message lists the methods and the closest match.
    """
    known = names(losses)
    if key not in known:
        plain = key.removesuffix(ALM)
        closest = plain if plain in known else difflib.get_close_matches(key, known, 1, 0.0)[0]
        raise ValueError(
            f"unknown method {key!r}. Did you mean {closest!r}? Known: {', '.join(known)}."
        )


def label(key: str) -> str:
    """Return the name of a method in a table, as in the paper."""
    if key == CONTROL:
        return LABEL
    plain = key.removesuffix(ALM)
    return _entries()[plain].label + (" + ALM" if plain != key else "")


def is_controlled(key: str) -> bool:
    """Return whether the controller weighs the forget direction of method `key`."""
    entry = _entries().get(key)  # none for a control or a reference model
    return key.endswith(ALM) or (entry is not None and entry.method.alm == "built in")


def method_of(key: str, losses: str = "tokens") -> type[Method]:
    """Return the class of a method, with or without the controller, or of the control."""
    if key == CONTROL:
        return CONTROLS[losses]
    check_method(key, losses)
    return LOSSES[losses][key.removesuffix(ALM)].method


def kind_of(key: str, losses: str = "tokens") -> type[Settings]:
    """Return the class of a method's settings."""
    return method_of(key, losses).settings_type


def settings_of(key: str, numbers: Mapping[str, Any]) -> Settings:
    """Return a method's settings from those of these numbers that it has.

    >>> settings_of("npo", {"lr": 1e-4, "beta": 0.2, "rho_forget": 0.01}).beta
    0.2
    """
    kind = kind_of(key, numbers.get("losses", "tokens"))
    return kind(**{name: value for name, value in numbers.items() if name in hints(kind)})


def build(key: str, model: nn.Module, settings: Settings) -> Method:
    """Return the method `key`, or the control, for a model."""
    method = method_of(key, settings.losses)
    return method(model, settings, method.controller(settings) if is_controlled(key) else None)
