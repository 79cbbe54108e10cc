"""Rounding to half precision that is right on average.

A perturbation of theta is often shorter than the distance between two neighbouring bfloat16
numbers: nearest rounding then drops it. Rounding up with the probability of the remainder keeps its
mean, at the price of noise. The noise is hashed from a seed, because drawing it costs more than
everything else together; so it needs no generator's state, is the same on all ranks and after a
resume, and no device waits for it.
"""

from functools import lru_cache
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

Rounding: TypeAlias = Literal["nearest", "stochastic"]

# How many bits of a float32 the narrower type lacks.
DROPPED = {torch.bfloat16: 16, torch.float16: 13}
CACHED = 262_144


def check_rounding(value: Any, name: str) -> Rounding:  # noqa: ANN401
    """Return one of the two words, or raise a `ValueError`."""
    if value not in ("nearest", "stochastic"):
        raise ValueError(f'{name} is {value!r}; it is "nearest" or "stochastic".')
    return value


class Noise:
    """A stream of rounding noise.

    Each call shifts one hashed pattern by a number of its own, cyclically: any two draws of an
    entry are uniform and independent over the shifts.
    """

    def __init__(self, seed: Tensor) -> None:
        """Begin with the bits of a 0-dim tensor, such as a gradient's norm."""
        self._seed = seed.detach().float().reshape(()).view(torch.int32)
        self._calls = 0
        self._memory: dict[int, Tensor] = {}

    def widened(self, values: Tensor, place: int) -> Tensor:
        """Copy to float32; blocks of a CPU in memory of that place, which the next one overwrites.

        Memory that is asked for anew has to be mapped anew, which takes longer than to fill it.
        """
        if not _is_block(values):
            return values.to(torch.float32, copy=True)
        return self._room(values, place).copy_(values)

    def rounded(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """Round `values`, a float32 tensor that is overwritten, to what `dtype` can hold.

        Below the normal range of float16 (6e-5) rounding is partly to the nearest.

        Cost: three passes over `values`, and over twice their memory.
        """
        self._calls += 1
        mask = (1 << DROPPED[dtype]) - 1
        shift = _hashed(self._seed + (self._calls * 0x61C88647) % 2**31)
        bits = values.view(torch.int32)
        is_block = _is_block(values)
        noise = self._room(values, 2) if is_block else torch.empty_like(values)
        noise = noise.view(torch.int32)
        torch.add(_pattern(values).view(values.shape), shift.to(values.device), out=noise)
        bits.add_(noise.bitwise_and_(mask)).bitwise_and_(~mask)
        return values

    def _room(self, values: Tensor, place: int) -> Tensor:
        if place not in self._memory:
            self._memory[place] = torch.empty(CACHED)
        return self._memory[place][: values.numel()].view(values.shape)


def _is_block(values: Tensor) -> bool:
    """Tell whether this is a plain tensor on the host, and no longer than a block.

    Of a fake one nothing may be kept for the next, which is not.
    """
    is_plain = type(values) is Tensor and values.layout == torch.strided
    return is_plain and values.device.type == "cpu" and values.numel() <= CACHED


def _pattern(values: Tensor) -> Tensor:
    """Hash a number for each entry; those of a block are kept."""
    size, device = values.numel(), values.device
    if _is_block(values):
        return _kept()[:size]
    return _hashed(torch.arange(size, device=device, dtype=torch.int32))


@lru_cache(maxsize=1)
def _kept() -> Tensor:
    return _hashed(torch.arange(CACHED, dtype=torch.int32))


def _hashed(numbers: Tensor) -> Tensor:
    """Mix int32 numbers until neighbours have nothing in common (after lowbias32, C. Wellons)."""
    mixed = numbers.clone()
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - 2**32), (16, 1)):
        high = (mixed >> shift).bitwise_and_(2 ** (32 - shift) - 1)  # without copies of the sign
        mixed.bitwise_xor_(high).mul_(factor)
    return mixed
