"""Measurements since the last step: shapes, and their mean over micro-batches and ranks."""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from torch_alm._constraint import numbers
from torch_alm._constraint.numbers import Mask, Number

Index: TypeAlias = Tensor | Sequence[int]


class Observation(NamedTuple):
    """A value, its share in the mean of its step, and the entries it is for (`None`: all)."""

    value: Number
    weight: float
    row: Tensor | None = None


class Mean(NamedTuple):
    """The weighted means of what was finite, where there was something, and how much was not."""

    value: Number
    seen: Mask
    bad: int


def mean(observations: Sequence[Observation], size: torch.Size, alpha: Number) -> Mean:
    """Average the observations of all ranks; at most one device synchronisation.

    Distances from alpha are averaged, so that the mean of measurements equal to alpha is alpha,
    however the weights are rounded.

    Args:
        observations: numbers of the shape `size`, or with an index its entries.
        size: `()` for one number.
        alpha: the threshold.
    """
    first = observations[0]
    if len(observations) == 1 and first.row is None and not is_distributed():
        value = first.value if isinstance(first.value, float) else numbers.to_host(first.value)
        c = value - alpha
        if math.isfinite(c) if isinstance(c, float) else numbers.is_finite(c):
            return Mean(value, True, 0)  # the common case, in which there is no sum
    index, columns = _columns(observations, size, alpha)
    sums = columns.new_zeros(3, size.numel()).index_add_(1, index, columns)
    total, weight, bad = (sum_over_ranks(sums) if is_distributed() else sums).unbind()
    seen, bad = weight > 0, int(bad.sum())
    value = alpha + (total / weight.where(seen, torch.ones_like(weight))).reshape(size)
    if size == ():
        return Mean(value.item(), bool(seen), bad)
    return Mean(value, bool(seen.all()) or seen.reshape(size), bad)  # a plain truth costs less


def _columns(
    observations: Sequence[Observation], size: torch.Size, alpha: Number
) -> tuple[Tensor, Tensor]:
    """Return the entry that each number is for, and what of it is summed up there.

    Summed up are the distance from alpha times the weight, the weight, and 1 if it is not finite.
    """
    everywhere = torch.arange(size.numel(), device="cpu")
    index = torch.cat([everywhere if o.row is None else o.row for o in observations])
    weights = torch.cat([_fill(o.weight, o, size) for o in observations])
    levels = torch.cat([_fill(alpha, o, size) for o in observations])
    distances = _flat([o.value for o in observations]) - levels
    finite, nothing = distances.isfinite(), torch.zeros_like(weights)
    weights = weights.where(finite, nothing)
    distances = distances.where(finite, nothing)
    return index, torch.stack([distances * weights, weights, (~finite).double()])


def _flat(values: list[Number]) -> Tensor:
    """Put all entries in one row on the host, in one transfer."""
    home = next((v for v in values if isinstance(v, Tensor)), torch.zeros((), device="cpu"))
    rows = [torch.as_tensor(v, dtype=widest(home), device=home.device).reshape(-1) for v in values]
    return torch.cat(rows).cpu().double()


def _fill(number: Number, observation: Observation, size: torch.Size) -> Tensor:
    """Repeat a number once per entry of the observation."""
    whole = torch.as_tensor(number, dtype=torch.float64, device="cpu").expand(size).reshape(-1)
    return whole if observation.row is None else whole[observation.row]


def is_distributed() -> bool:
    """Return whether there is another rank to agree with."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def sum_over_ranks(part: Tensor) -> Tensor:
    """Add up over ranks, in memory of its own and on a device the backend speaks to."""
    device = torch.device("cuda") if dist.get_backend() == "nccl" else part.device
    found = part.detach().to(device, copy=True)
    dist.all_reduce(found)
    return found.to(part.device)


def check_shape(value: object, size: torch.Size) -> Tensor:
    """Return the value in the shape `size`; a single number may have any number of dimensions.

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
        f"ALMConstraint: a measurement has shape {tuple(value.shape)} and the multipliers "
        f"{tuple(size)}; broadcasting would move the wrong ones. Did you forget `.mean()`, an "
        "alpha with one entry per constraint, or `index` (without it an entry is a place in the "
        "batch)?"
    )


def widen(value: Tensor, alpha: Number, row: Tensor | None = None) -> Number:
    """Convert to float64, where the device knows it, and to a float of Python on the host.

    What equals alpha in its own type becomes alpha: a narrow type cannot tell apart the numbers
    between two of its own, and alpha may be one of those.
    """
    if not isinstance(alpha, Tensor) and value.ndim == 0 and value.device.type == "cpu":
        return alpha if bool(value == alpha) else float(value.item())
    own = alpha = numbers.pick(alpha, row)
    if isinstance(alpha, Tensor):
        alpha = alpha.to(value.device, widest(value), non_blocking=True)
        own = alpha.to(value.dtype) if value.is_floating_point() else alpha
    return torch.where(value == own, alpha, value.to(widest(value)))


def widest(value: Tensor) -> torch.dtype:
    """Return the widest type that the value's device knows."""
    return torch.float32 if value.device.type == "mps" else torch.float64


def entries(index: Index, value: Tensor, size: torch.Size) -> Tensor:
    """Return the index as a row of whole numbers on the host, one per entry of `value`.

    Raises:
        ValueError: if there is no vector of multipliers to index, or the index is not of whole
            numbers within it, one per entry of `value`.
    """
    found = torch.as_tensor(index, device=None if isinstance(index, Tensor) else "cpu")
    found = found.detach().cpu()
    if len(size) != 1:
        raise ValueError(
            f"ALMConstraint: index needs one multiplier per entry, and the multipliers have shape "
            f"{tuple(size)}. Did you mean an alpha or a multiplier with one entry per example?"
        )
    is_whole = not (found.dtype == torch.bool or found.is_floating_point()) or not found.numel()
    if found.shape != value.shape or found.ndim > 1 or not is_whole:
        raise ValueError(
            f"ALMConstraint: index is of {found.dtype} and shape {tuple(found.shape)}, and value "
            f"has shape {tuple(value.shape)}; values would reach the wrong multipliers. Is there "
            "one whole number per value, in a row?"
        )
    row = found.reshape(-1).long()
    if row.numel() and (int(row.min()) < 0 or int(row.max()) >= size[0]):
        raise ValueError(
            f"ALMConstraint: index goes from {int(row.min())} to {int(row.max())}, and there are "
            f"{size[0]} multipliers, 0 to {size[0] - 1}. Are these positions in a larger data set?"
        )
    return row


def align(value: Tensor, alpha: Number, row: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return value and alpha on the value's device in float32 or wider, and where they are equal.

    They are where alpha, rounded to the value's own type, is the value.
    """
    wide = value.to(torch.promote_types(value.dtype, torch.float32))
    own = value if value.is_floating_point() else wide
    return wide, cast(alpha, wide, row), own == cast(alpha, own, row)


def merge_repeated(c: Tensor, row: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Average the violations at one index: there is one penalty per multiplier."""
    if row is None:
        return c, row
    entries, inverse, counts = row.unique(return_inverse=True, return_counts=True)
    if len(entries) == len(row):
        return c, row
    sums = c.new_zeros(len(entries)).index_add(0, inverse.to(c.device), c)
    return sums / counts.to(c.device, c.dtype), entries


def cast(number: Number, c: Tensor, row: Tensor | None) -> Tensor:
    """Convert the entries in `row` to the type and the device of c, without waiting for it."""
    number = numbers.pick(number, row)
    most = torch.finfo(c.dtype).max
    number = numbers.clamp(number, -most, most)
    if isinstance(number, Tensor):
        return number.to(c.device, c.dtype, non_blocking=True)
    return c.new_full((), number)
