"""Arithmetic of a constraint on the host: one number is a float, several a float64 tensor.

Floats because one multiplier is the common case, and a tensor operation costs twenty times one of
floats.
"""

import math
from typing import TypeAlias

import torch
from torch import Tensor

Number: TypeAlias = float | Tensor
Truth: TypeAlias = bool | Tensor


def host(value: Number) -> Number:
    """On the host in float64, detached, in memory of its own: a float for a 0-dim tensor."""
    if not isinstance(value, Tensor):
        return float(value)
    return float(value.item()) if value.ndim == 0 else value.detach().cpu().double().clone()


def shape(value: Number) -> torch.Size:
    """`()` for a float."""
    return value.shape if isinstance(value, Tensor) else torch.Size()


def positive(value: Number) -> Number:
    """[value]_+."""
    return value.clamp(min=0) if isinstance(value, Tensor) else max(value, 0.0)


def limited(value: Number, limit: float) -> Number:
    """The nearest value in [-limit, limit]."""
    if isinstance(value, Tensor):
        return value.clamp(-limit, limit)
    return min(max(value, -limit), limit)


def choose(which: Truth, yes: Number, no: Number) -> Number:
    """`yes` where `which` holds, else `no`."""
    if not isinstance(which, Tensor):
        return yes if which else no
    if not isinstance(yes, Tensor):  # of two plain numbers torch would make a float32
        yes = torch.tensor(yes, dtype=torch.float64)
    return torch.where(which, yes, no)


def any_of(which: Truth) -> bool:
    """Whether it holds for any entry."""
    return bool(which.any()) if isinstance(which, Tensor) else which


def is_finite(value: Number) -> bool:
    """Whether every entry is finite."""
    return bool(value.isfinite().all()) if isinstance(value, Tensor) else math.isfinite(value)


def average(value: Number) -> float:
    """The mean over the entries that are numbers."""
    return value.nanmean().item() if isinstance(value, Tensor) else value


def largest(value: Number) -> float:
    """The largest of the entries that are numbers; `nan` if none is."""
    if not isinstance(value, Tensor):
        return value
    found = value.max().item()
    if not math.isnan(found):
        return found
    known = value[~value.isnan()]
    return known.max().item() if known.numel() else math.nan


def copied(value: Number) -> Number:
    """The same number, sharing no memory."""
    return value.clone() if isinstance(value, Tensor) else value


def expanded(value: Number, size: torch.Size) -> Number:
    """One number per entry, in memory of its own; unchanged for a single one."""
    if size == ():
        return value
    return torch.as_tensor(value, dtype=torch.float64).expand(size).clone()


def pick(value: Number, row: Tensor | None) -> Number:
    """The entries of a vector that a row of indices names; all of them without one."""
    return value if row is None or not isinstance(value, Tensor) else value[row]
