"""Values and indices in the shape that the multipliers have."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from torch_alm._control import numbers

Index: TypeAlias = Tensor | Sequence[int]


def joint(size: torch.Size, given: Mapping[str, Any], *, is_open: bool) -> torch.Size:
    """The shape of the multipliers, given a new alpha and a new multiplier.

    Raises:
        ValueError: if they do not fit one another, or the shape there is.
    """
    for name in ("alpha", "multiplier"):
        found = numbers.shape(given.get(name, 0.0))
        try:
            both = torch.broadcast_shapes(size, found)
        except RuntimeError:
            both = None
        if both is None or not (is_open or both == size):
            raise ValueError(
                f"ALMConstraint: {name} has shape {tuple(found)} and the multipliers "
                f"{tuple(size)}; there would be no one multiplier per entry. Did you mean one "
                "number, or one per multiplier?"
            )
        size = both
    return size


def shaped(value: object, size: torch.Size) -> Tensor:
    """The value in the shape `size`; a single number may have any number of dimensions.

    Raises:
        TypeError: if it is no tensor.
        ValueError: if its shape is another one.
    """
    if not isinstance(value, Tensor):
        raise TypeError(
            f"ALMConstraint: the measure returned {type(value).__name__}, which has no gradient. "
            "Did you mean to return the tensor (not `.item()`)?"
        )
    if value.shape == size:
        return value
    if value.numel() == 1 and size.numel() == 1:
        return value.reshape(size)
    raise ValueError(
        f"ALMConstraint: the measure returned shape {tuple(value.shape)} where {tuple(size)} was "
        "expected; broadcasting would move the wrong multipliers. Did you forget `.mean()`, or an "
        "alpha with one entry per constraint?"
    )


def entries(index: Index, value: Tensor, size: torch.Size) -> Tensor:
    """The index as a row of whole numbers on the host, one per entry of `value`.

    Raises:
        ValueError: if there is no vector of multipliers to index, or the index is not of whole
            numbers within it, one per entry of `value`.
    """
    found = torch.as_tensor(index).detach().cpu()
    if len(size) != 1:
        raise ValueError(
            f"ALMConstraint: index needs one multiplier per entry, and the multipliers have shape "
            f"{tuple(size)}. Did you mean an alpha or a multiplier with one entry per example?"
        )
    if found.numel() and (found.dtype == torch.bool or found.is_floating_point()):
        raise ValueError(f"ALMConstraint: index is of {found.dtype}. Did you mean whole numbers?")
    if found.shape != value.shape or found.ndim > 1:
        raise ValueError(
            f"ALMConstraint: index has shape {tuple(found.shape)} and value {tuple(value.shape)}; "
            "values would reach the wrong multipliers. Is there one index per value, in a row?"
        )
    row = found.reshape(-1).long()
    if row.numel() and (int(row.min()) < 0 or int(row.max()) >= size[0]):
        raise ValueError(
            f"ALMConstraint: index goes from {int(row.min())} to {int(row.max())}, and there are "
            f"{size[0]} multipliers, 0 to {size[0] - 1}. Are these positions in a larger data set?"
        )
    return row
