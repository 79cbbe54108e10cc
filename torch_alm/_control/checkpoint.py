"""Whether a checkpoint is one of this constraint."""

from collections.abc import Mapping
from typing import Any

import torch

from torch_alm._control import numbers

OWNER = "ALMConstraint.load_state_dict"


def check(found: Mapping[str, Any], mine: Mapping[str, Any], size: torch.Size | None) -> None:
    """Raise `ValueError` if anything would be lost or belong to another constraint.

    Args:
        found: the checkpoint.
        mine: a `state_dict` of the constraint that is to load it.
        size: the shape of its multipliers; `None` if that is still open.
    """
    _check_names(found, mine, "")
    if found["sense"] != mine["sense"]:
        raise ValueError(
            f"{OWNER}: the checkpoint's sense is \"{found['sense']}\" and this one's "
            f'"{mine["sense"]}"; the multiplier would push the wrong way. Is it another constraint?'
        )
    shape = numbers.shape(found["multiplier"])
    if size is not None and shape != size:
        raise ValueError(
            f"{OWNER}: the checkpoint has multipliers of shape {tuple(shape)} and this "
            f"constraint {tuple(size)}. Is it another constraint?"
        )
    if not numbers.is_finite(found["multiplier"]):
        raise ValueError(
            f"{OWNER}: the checkpoint's multiplier is not finite and would stay so. Was it saved "
            "by another library?"
        )


def _check_names(found: Mapping[str, Any], mine: Mapping[str, Any], where: str) -> None:
    """The same entries, and within those that have entries of their own."""
    if {*found} != {*mine}:
        raise ValueError(
            f"{OWNER} found the entries {sorted(map(str, found))}{where} and needs "
            f"{sorted(mine)}. Is it the checkpoint of a constraint?"
        )
    for name, entry in mine.items():
        if isinstance(entry, Mapping):
            _check_names(found[name], entry, f" in {name!r}")
