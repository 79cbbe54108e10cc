"""Arithmetic of a constraint on the host: one number is a float, several a float64 tensor.

Floats because one multiplier is the common case, and a tensor operation costs twenty times one of
floats.
"""

import math
import operator
from collections.abc import Callable
from typing import Any, SupportsFloat, SupportsIndex, TypeAlias

import torch
from torch import Tensor

Number: TypeAlias = float | Tensor
Truth: TypeAlias = bool | Tensor
Numeric: TypeAlias = SupportsFloat | SupportsIndex  # of Python, of NumPy, or a tensor


def host(value: Numeric) -> Number:
    """On the host in float64, detached, in memory of its own: a float if it has no dimensions."""
    if isinstance(value, Tensor):
        value = value.detach()
        return float(value.item()) if value.ndim == 0 else value.cpu().double().clone()
    if getattr(value, "ndim", 0):
        return torch.as_tensor(value).double().clone()
    return float(value)


def tensor(value: object) -> Tensor:
    """As a tensor in its own type, without a graph; a number of Python in float64."""
    if isinstance(value, Tensor):
        return value.detach()
    return torch.as_tensor(value, dtype=torch.float64 if type(value) is float else None)


def single(value: Numeric) -> float:
    """One number as a float, whatever its dimensions are; a bool is 0 or 1, as in torch."""
    return float(value.detach() if isinstance(value, Tensor) else value)


def whole(value: SupportsIndex) -> int:
    """A whole number; 3.0 is none."""
    return operator.index(value)


def steps(value: Numeric) -> int | float:
    """A number of steps, which may be one such as 1e5."""
    found = single(value)
    return int(found) if found.is_integer() else found


def tried(convert: Callable[[Any], object], value: object) -> object:
    """The value converted, or as it is if it cannot be: the rule it breaks then names it."""
    try:
        return convert(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return value


def rounded(value: Number, dtype: torch.dtype | None) -> Number:
    """The nearest number that a measurement of this type can be; `None` for one of Python.

    A narrow type cannot tell the numbers between two of its own apart: one that has reached the
    rounded value may have been reached before it was rounded.
    """
    if dtype is None or dtype == torch.float64 or not dtype.is_floating_point:
        return value
    if isinstance(value, Tensor):
        found = value.to(dtype).double()
        return torch.where(found.isfinite(), found, value)
    # Never kept for the next call: under a mode without numbers (FakeTensorMode) it is not one.
    number = torch.tensor(value, dtype=torch.float64).to(dtype).item()
    return number if math.isfinite(number) else value


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


def is_number(value: object) -> bool:
    """Whether it is a number, or several, and finite."""
    return isinstance(value, (float, Tensor)) and is_finite(value)


def only_finite(which: Truth, value: Number) -> Truth:
    """`which`, but not where the value is not finite; a plain truth stays one if it may."""
    if is_finite(value):
        return which
    return which & value.isfinite() if isinstance(value, Tensor) else False


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
