"""Arithmetic of a constraint on the host: one number is a float, several a float64 tensor.

Floats because one multiplier is the common case, and a tensor operation costs twenty times one of
floats.
"""

import math
from collections.abc import Sequence
from typing import Any, SupportsFloat, SupportsIndex, TypeAlias

import torch
from torch import Tensor

Number: TypeAlias = float | Tensor
Mask: TypeAlias = bool | Tensor
Numeric: TypeAlias = (  # of Python, of NumPy, a tensor, or several in a list
    SupportsFloat | SupportsIndex | Sequence[float]
)


def to_host(value: object) -> Number:
    """Copy to the host in float64, detached: a float, or a tensor of what has dimensions."""
    if isinstance(value, (Tensor, list, tuple)) or getattr(value, "ndim", 0):
        found = to_tensor(value).cpu().double().clone()
        return found if found.ndim else float(found)
    if isinstance(value, (str, bytes)):
        raise TypeError("a text is no number")
    return float(value)  # pyright: ignore[reportArgumentType]


def to_tensor(value: object) -> Tensor:
    """Make a tensor of its own type, without a graph; numbers of Python are those of float64."""
    if isinstance(value, Tensor):
        return value.detach()
    is_typed = getattr(value, "dtype", None) is not None  # NumPy's
    return torch.as_tensor(value, dtype=None if is_typed else torch.float64, device="cpu")


def to_float(value: object) -> float:
    """Convert one number to a float, whatever its dimensions; a bool is 0 or 1, as in torch.

    Raises:
        ValueError: if there are several.
    """
    found = to_host(value)
    if isinstance(found, Tensor) and found.numel() != 1:
        raise ValueError(f"{found.numel()} numbers where one was expected")
    return float(found)


def shape(value: Number) -> torch.Size:
    """Return the shape, `()` for a float."""
    return value.shape if isinstance(value, Tensor) else torch.Size()


def clamp(value: Number, least: Any, most: Any) -> Number:  # noqa: ANN401
    """Return the nearest value in [least, most], which are numbers or, of a tensor, like it."""
    if isinstance(value, Tensor):
        return value.clamp(least, most)
    return min(max(value, least), most)


def root(value: Number) -> Number:
    """Return the square root."""
    return value.sqrt() if isinstance(value, Tensor) else math.sqrt(value)


def choose(which: Mask, yes: Number, no: Number) -> Number:
    """Return `yes` where `which` holds, else `no`."""
    if not isinstance(which, Tensor):
        return yes if which else no
    if not isinstance(yes, Tensor):  # of two plain numbers torch would make a float32
        yes = torch.tensor(yes, dtype=torch.float64, device="cpu")
    return torch.where(which, yes, no)


def any_of(which: Mask) -> bool:
    """Return whether it holds for any entry."""
    return bool(which.any()) if isinstance(which, Tensor) else which


def is_finite(value: Number) -> bool:
    """Return whether every entry is finite."""
    return bool(value.isfinite().all()) if isinstance(value, Tensor) else math.isfinite(value)


def average(value: Number) -> float:
    """Return the mean over the entries that are numbers."""
    return value.nanmean().item() if isinstance(value, Tensor) else value


def largest(value: Number) -> float:
    """Return the largest of the entries that are numbers; `nan` if none is."""
    if not isinstance(value, Tensor):
        return value
    found = value.where(value == value, -math.inf).max().item()
    return found if found > -math.inf else math.nan


def expand(value: Number, size: torch.Size) -> Number:
    """Repeat a number once per entry, in memory of its own; a single one stays as it is."""
    if size == ():
        return value
    return torch.as_tensor(value, dtype=torch.float64, device="cpu").expand(size).clone()


def pick(value: Number, row: Tensor | None) -> Number:
    """Select the entries in `row`, or all if it is None."""
    return value if row is None or not isinstance(value, Tensor) else value[row]


def copy_to_host(value: Any) -> Any:  # noqa: ANN401  # what a state or a memory consists of
    """Copy numbers, tensors and lists or dicts of them to the host, sharing no memory."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {name: copy_to_host(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [copy_to_host(entry) for entry in value]
    return value
