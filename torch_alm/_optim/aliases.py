"""Tensors that lie in the same memory: each place is to be moved or scaled once."""

from collections.abc import Hashable, Sequence
from itertools import pairwise

from torch import Tensor


def place(tensor: Tensor) -> Hashable:
    """Name the memory of a tensor, alike for two that are the same entries in the same order."""
    return (_storage(tensor), _extent(tensor), tensor.shape, tensor.stride())


def apart(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Leave out tensors that lie where an earlier one does."""
    return list({place(t): t for t in reversed(tensors)}.values())[::-1]


def check(tensors: Sequence[Tensor], owner: str) -> None:
    """Raise a `ValueError` if the memory of two tensors overlaps without being the same."""
    filled = sorted((t for t in tensors if t.numel()), key=lambda t: (_storage(t), _extent(t)))
    for one, other in pairwise(filled):
        overlaps = _storage(one) == _storage(other) and _extent(other)[0] < _extent(one)[1]
        if overlaps and place(one) != place(other):
            raise ValueError(
                f"{owner}: parameters of shapes {tuple(one.shape)} and {tuple(other.shape)} lie "
                "partly in the same memory, which would be moved twice. Did you mean one "
                "parameter, or a copy (`clone()`) of it?"
            )


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Locate a tensor in its storage: its first byte, and the one after its last."""
    span = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = int(tensor.storage_offset()) * tensor.element_size()
    return begin, begin + (span + 1) * tensor.element_size()
