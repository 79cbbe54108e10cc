"""Measurements since the last step: their shapes, and their mean over micro-batches and ranks."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from torch_alm._constraint import numbers
from torch_alm._constraint.numbers import Mask, Number
from torch_alm._constraint.settings import Settings

Index: TypeAlias = Tensor | Sequence[int]


class Observation(NamedTuple):
    """A value, its share in the mean of its step, and the entries it is for (`None`: all).

    And the type it was measured in, if it was a tensor's.
    """

    value: Number
    weight: float
    row: Tensor | None = None
    dtype: torch.dtype | None = None


class Mean(NamedTuple):
    """The weighted means of what was finite, where there was something, and how much was not.

    Violations are averaged next to the values, each against alpha in the type of its measurement:
    the mean of measurements that equal alpha is no violation, whatever the weights round to.
    """

    value: Number
    c: Number
    seen: Mask
    bad: int


class Observations(list[Observation]):
    """The measurements since the last step, also of one that never came: theta has not moved."""

    def __init__(self) -> None:
        super().__init__()
        self._mean: Mean | None = None
        self._averaged = 0  # measurements in that mean
        self._against: tuple[Number, str] = 0.0, ""

    def mean(self, size: torch.Size, settings: Settings) -> Mean:
        """Average all of it; asked twice, it waits for devices and other ranks once."""
        against, before = (settings.alpha, settings.sense), self._against
        is_same = before[0] is against[0] and before[1] == against[1]
        if self._mean is None or self._averaged != len(self) or not is_same:
            self._mean, self._against = mean(self, size, settings), against
            self._averaged = len(self)
        return self._mean

    def drop(self, keep: int = 0) -> None:
        """Start again, or go back to the first `keep`."""
        self._mean = None
        del self[keep:]


def mean(observations: Sequence[Observation], size: torch.Size, settings: Settings) -> Mean:
    """Average the observations of all ranks; at most one device synchronisation.

    Args:
        observations: numbers of the shape `size`, or with an index its entries.
        size: `()` for one number.
        settings: which side of which alpha is a violation.
    """
    first = observations[0]
    if len(observations) == 1 and first.row is None and not is_distributed():
        value = first.value if isinstance(first.value, float) else numbers.host(first.value)
        c = numbers.beyond(settings.alpha, settings.sense, value, first.dtype)
        if numbers.is_finite(c):  # the common case, in which there is no sum
            return Mean(value, c, True, 0)
    if size != ():
        return _mean_of_vectors(observations, size, settings)
    values = _floats([o.value for o in observations])
    total = violation = weight = 0.0
    bad = 0
    for v, o in zip(values, observations, strict=True):
        c = numbers.beyond(settings.alpha, settings.sense, v, o.dtype)
        if numbers.is_finite(c):
            total += v * o.weight
            violation += c * o.weight
            weight += o.weight
        else:
            bad += 1
    if is_distributed():
        sums = torch.tensor([total, violation, weight, bad], dtype=torch.float64)
        total, violation, weight, bad = over_ranks(sums).tolist()
    if not weight:
        return Mean(0.0, 0.0, False, int(bad))
    return Mean(total / weight, violation / weight, True, int(bad))


def _floats(values: list[Number]) -> list[float]:
    """Bring all of them to the host in one transfer."""
    if not any(isinstance(v, Tensor) for v in values):
        return values  # pyright: ignore[reportReturnType]
    return _flat(values).tolist()


def _mean_of_vectors(
    observations: Sequence[Observation], size: torch.Size, settings: Settings
) -> Mean:
    """Average entry by entry: those that were observed several times, too."""
    values = _flat([o.value for o in observations])
    everywhere = torch.arange(size.numel())
    index = torch.cat([everywhere if o.row is None else o.row for o in observations])
    weights = torch.cat([_filled(o.weight, o, size) for o in observations])
    levels = torch.cat(
        [_filled(numbers.rounded(settings.alpha, o.dtype), o, size) for o in observations]
    )
    c = values - levels if settings.sense == "<=" else levels - values
    finite, nothing = c.isfinite(), torch.zeros_like(weights)
    weights = weights.where(finite, nothing)
    numerators = [each.where(finite, nothing) * weights for each in (values, c)]
    columns = torch.stack([*numerators, weights, (~finite).double()])
    sums = torch.zeros(4, size.numel(), dtype=torch.float64).index_add_(1, index, columns)
    total, violation, weight, bad = (over_ranks(sums) if is_distributed() else sums).unbind()
    seen = weight > 0
    weight = weight.where(seen, torch.ones_like(weight))
    value, c = (total / weight).reshape(size), (violation / weight).reshape(size)
    # As a plain truth, it costs nothing further on.
    return Mean(value, c, True if seen.all() else seen.reshape(size), int(bad.sum()))


def _flat(values: list[Number]) -> Tensor:
    """Put all entries in one row on the host, in one transfer."""
    home = next((v.device for v in values if isinstance(v, Tensor)), torch.device("cpu"))
    # A number of Python is one of float64, which not every device knows.
    wide = torch.float32 if home.type == "mps" else torch.float64
    rows = [v if isinstance(v, Tensor) else torch.tensor(v, dtype=wide) for v in values]
    return torch.cat([row.to(home).reshape(-1) for row in rows]).cpu().double()


def _filled(number: Number, observation: Observation, size: torch.Size) -> Tensor:
    """Repeat a number once per entry of the observation."""
    whole = torch.as_tensor(number, dtype=torch.float64).expand(size).reshape(-1)
    return whole if observation.row is None else whole[observation.row]


def is_distributed() -> bool:
    """Tell whether there is another rank to agree with."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def over_ranks(part: Tensor) -> Tensor:
    """Add up over ranks, in memory of its own and on a device the backend speaks to."""
    device = torch.device("cuda") if dist.get_backend() == "nccl" else part.device
    found = part.detach().to(device, copy=True)
    dist.all_reduce(found)
    return found.to(part.device)


def joint(given: Mapping[str, Number]) -> torch.Size:
    """Return the shape of the multipliers.

    Raises:
        ValueError: if those of alpha and multiplier do not fit one another.
    """
    size = torch.Size()
    for name in ("alpha", "multiplier"):
        found = numbers.shape(given[name])
        try:
            both = torch.broadcast_shapes(size, found)
        except RuntimeError:
            both = None
        if both is None:
            raise ValueError(
                f"ALMConstraint: {name} has shape {tuple(found)} and the multipliers "
                f"{tuple(size)}; there would be no one multiplier per entry. Did you mean one "
                "number, or one per multiplier?"
            )
        size = both
    return size


def shaped(value: object, size: torch.Size) -> Tensor:
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
        f"ALMConstraint: the measure returned shape {tuple(value.shape)} where {tuple(size)} was "
        "expected; broadcasting would move the wrong multipliers. Did you forget `.mean()`, or an "
        "alpha with one entry per constraint?"
    )


def entries(index: Index, value: Tensor, size: torch.Size) -> Tensor:
    """Return the index as a row of whole numbers on the host, one per entry of `value`.

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
