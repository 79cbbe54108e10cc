"""The methods of the paper, each with and without the controller: one registry.

A method is one file of this folder: a subclass of `Method` under `@register(key, label)`. Where the
controller is optional, the method also exists as `key+alm`.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil

from torch import nn

from benchmarks.methods.method import Method
from benchmarks.methods.registry import LOSSES, METHODS, ON_RMU, Entry
from benchmarks.methods.retain_only import CONTROL, LABEL, RetainOnly
from benchmarks.methods.rmu import RetainOnlyOnRMU
from benchmarks.methods.settings import Settings

__all__ = [
    "CONTROL",
    "LOSSES",
    "METHODS",
    "Entry",
    "Method",
    "Settings",
    "build",
    "check",
    "is_controlled",
    "label",
    "names",
    "with_controller",
]

ALM = "+alm"
CONTROLS: dict[str, type[Method]] = {"tokens": RetainOnly, "rmu": RetainOnlyOnRMU}
"""The control by the losses of the methods beside it."""

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def names(losses: str = "tokens") -> list[str]:
    """Every key a command line may name, in the order of the tables.

    Args:
        losses: Those that know these losses, a key of `LOSSES`; `any` lists them all.
    """
    found = ON_RMU | METHODS if losses == "any" else LOSSES[losses]
    entries = sorted(found.items(), key=lambda item: item[1].position)
    return [key + suffix for key, entry in entries for suffix in entry.suffixes()]


def check(key: str, losses: str = "tokens") -> None:
    """Make sure that `key` is a method that knows these losses.

    Raises:
        ValueError: It is not; the message lists the known ones with the closest match.
    """
    if key in names(losses):
        return
    plain, methods = key.removesuffix(ALM), LOSSES[losses]
    if plain in methods:
        raise ValueError(
            f"{key!r} does not exist: in {plain} the controller is {methods[plain].method.alm}. "
            f"Did you mean {'saul' if methods[plain].method.alm == 'left out' else plain!r}?"
        )
    closest = difflib.get_close_matches(key, names(losses), n=1, cutoff=0.0)[0]
    known = ", ".join(names(losses))
    raise ValueError(f"unknown method {key!r}. Did you mean {closest!r}? Known: {known}.")


def label(key: str) -> str:
    """The name of a method in a table, as the paper writes it."""
    if key == CONTROL:
        return LABEL
    plain = key.removesuffix(ALM)
    return (ON_RMU | METHODS)[plain].label + (" + ALM" if plain != key else "")


def is_controlled(key: str) -> bool:
    """Tell whether the controller weighs the forget direction of method `key`."""
    if key == CONTROL:
        return False
    return key.endswith(ALM) or (ON_RMU | METHODS)[key].method.alm == "built in"


def with_controller(key: str) -> str:
    """Name a method with the controller: `npo+alm` of `npo`, `saul` of `saul_no_alm`."""
    return key.replace("_no_alm", "") if "_no_alm" in key else key + ALM


def build(key: str, model: nn.Module, settings: Settings) -> Method:
    """The method `key`, or the control, at work on `model`."""
    if key == CONTROL:
        return CONTROLS[settings.losses](model, settings)
    check(key, settings.losses)
    method = LOSSES[settings.losses][key.removesuffix(ALM)].method
    return method(model, settings, method.controller(settings) if is_controlled(key) else None)
