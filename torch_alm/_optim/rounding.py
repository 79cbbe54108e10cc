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
CACHED, MANY = 262_144, 256


def check_rounding(value: Any, name: str) -> Rounding:  # noqa: ANN401
    """Return one of the two words, or raise a `ValueError`."""
    if value not in ("nearest", "stochastic"):
        raise ValueError(f'{name} is {value!r}; it is "nearest" or "stochastic".')
    return value


class Noise:
    """A stream of rounding noise.

    Each call shifts one hashed pattern by a number of its own, cyclically: any two draws of an
    entry are uniform and independent over the shifts. Blocks on the host rotate it instead, which
    is a view of it.
    """

    def __init__(self, seed: Tensor) -> None:
        """Begin with the bits of a 0-dim tensor, such as a gradient's norm."""
        self._seed = seed.detach().float().reshape(()).view(torch.int32)
        self._calls = 0
        self._starts: list[int] = []

    def rounded(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """Round `values`, a float32 tensor that is overwritten, to what `dtype` can hold.

        Below the normal range of float16 (6e-5) rounding is partly to the nearest.

        Cost: three passes over `values`, and over twice their memory.
        """
        mask = (1 << DROPPED[dtype]) - 1
        values.view(torch.int32).add_(self._noise(values, mask)).bitwise_and_(~mask)
        return values

    def _noise(self, values: Tensor, mask: int) -> Tensor:
        """Draw a number for each entry; on the host it is one of a block that is kept."""
        size = values.numel()
        # A fake one's would be kept for the next, which is not.
        is_plain = type(values) is Tensor and type(self._seed) is Tensor
        if is_plain and values.is_cpu and self._seed.is_cpu and size <= CACHED:
            start = self._start()
            return _kept(mask)[start : start + size].view(values.shape)
        self._calls += 1
        shift = _hashed(self._seed + (self._calls * 0x61C88647) % 2**31).to(values.device)
        pattern = _hashed(torch.arange(size, device=values.device, dtype=torch.int32))
        return pattern.view(values.shape).add_(shift).bitwise_and_(mask)

    def _start(self) -> int:
        """Take the next of many places to start at, which are hashed at once."""
        if not self._starts:
            counts = torch.arange(MANY, dtype=torch.int32) + self._calls
            self._starts = (_hashed(self._seed + counts * 0x61C88647) % CACHED).tolist()
            self._calls += MANY
        return self._starts.pop()


@lru_cache(maxsize=2)
def _kept(mask: int) -> Tensor:
    """Hash a number for each entry of a block, twice over, so that it can start anywhere."""
    return _hashed(torch.arange(CACHED, dtype=torch.int32)).bitwise_and_(mask).repeat(2)


def _hashed(numbers: Tensor) -> Tensor:
    """Mix int32 numbers until neighbours have nothing in common (after lowbias32, C. Wellons)."""
    mixed = numbers.clone()
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - 2**32), (16, 1)):
        high = (mixed >> shift).bitwise_and_(2 ** (32 - shift) - 1)  # without copies of the sign
        mixed.bitwise_xor_(high).mul_(factor)
    return mixed
