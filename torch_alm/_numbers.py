"""Arithmetic of a constraint on the host: one number is a float, several a float64 tensor.

Floats because one multiplier is the common case and a tensor operation costs twenty times a float's.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

Number: TypeAlias = float | Tensor
Truth: TypeAlias = bool | Tensor
Observation: TypeAlias = tuple[Number, float]


def host(value: Number) -> Number:
    """On the host in float64, detached: a float for a 0-dim tensor."""
    if not isinstance(value, Tensor):
        return float(value)
    return value.item() if value.ndim == 0 else value.detach().to("cpu", torch.float64)


def shape(value: Number) -> torch.Size:
    """`()` for a float."""
    return value.shape if isinstance(value, Tensor) else torch.Size()


def positive(value: Number) -> Number:
    """[value]_+"""
    return value.clamp(min=0) if isinstance(value, Tensor) else max(value, 0.0)


def choose(which: Truth, yes: Number, no: Number) -> Number:
    """`yes` where `which` holds, else `no`."""
    if not isinstance(which, Tensor):
        return yes if which else no
    return torch.where(which, torch.as_tensor(yes), torch.as_tensor(no))


def any_of(which: Truth) -> bool:
    """Whether it holds for any entry."""
    return bool(which.any()) if isinstance(which, Tensor) else which


def is_finite(value: Number) -> bool:
    """Whether every entry is finite."""
    return bool(value.isfinite().all()) if isinstance(value, Tensor) else math.isfinite(value)


def average(value: Number) -> float:
    """The mean over the entries."""
    return value.mean().item() if isinstance(value, Tensor) else value


def copied(value: Number) -> Number:
    """The same number, sharing no memory."""
    return value.clone() if isinstance(value, Tensor) else value


class Mean(NamedTuple):
    """The weighted mean of what was finite, where there was something, and how much was not."""

    value: Number
    seen: Truth
    bad: int


def mean(observations: Sequence[Observation]) -> Mean:
    """The mean over the observations of all ranks; one device synchronisation."""
    values = _together([value for value, _ in observations])
    weights = [weight for _, weight in observations]
    if isinstance(values, Tensor):
        return _mean_of_tensors(values, weights)
    finite = [(v, w) for v, w in zip(values, weights, strict=True) if math.isfinite(v)]
    total, weight = sum(v * w for v, w in finite), sum(w for _, w in finite)
    bad = len(values) - len(finite)
    if _is_distributed():
        total, weight, bad = _over_ranks(torch.tensor([total, weight, bad])).tolist()
    return Mean(total / weight if weight else 0.0, weight > 0, int(bad))


def _together(values: list[Number]) -> list[float] | Tensor:
    """All values on the host in one transfer: a list of floats, or a stack of vectors."""
    if len(values) == 1 and shape(values[0]) == ():
        return [float(values[0])]
    stacked = torch.stack([torch.as_tensor(v, dtype=torch.float64) for v in values]).cpu()
    return stacked.tolist() if stacked.ndim == 1 else stacked


def _mean_of_tensors(values: Tensor, weights: list[float]) -> Mean:
    """Entry by entry, over dim 0."""
    column = torch.tensor(weights, dtype=torch.float64).reshape(-1, *[1] * (values.ndim - 1))
    finite = values.isfinite()
    none = torch.zeros_like(values)
    total = torch.where(finite, values * column, none).sum(0)
    weight = torch.where(finite, column, none).sum(0)
    bad = (~finite).to(torch.float64).sum(0)
    if _is_distributed():
        total, weight, bad = _over_ranks(torch.stack([total, weight, bad])).unbind()
    seen = weight > 0
    return Mean(total / weight.where(seen, torch.ones_like(weight)), seen, int(bad.sum()))


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _over_ranks(sums: Tensor) -> Tensor:
    """The same sums over all ranks, through the device that the backend speaks to."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    shared = sums.to(device, torch.float64)
    dist.all_reduce(shared)
    return shared.cpu()
