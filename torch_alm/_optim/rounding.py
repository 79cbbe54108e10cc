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
CACHED, MANY, STRIDE = 262_144, 256, 0x61C88647


def check_rounding(value: Any, name: str) -> Rounding:  # noqa: ANN401
    """Return one of the two words, or raise a `ValueError`."""
    if value not in ("nearest", "stochastic"):
        raise ValueError(f'{name} is {value!r}; it is "nearest" or "stochastic".')
    return value


class Noise:
    """A stream of rounding noise.

    Entry i of a call gets hash(start + i), and start is hashed from the seed and the number of the
    call: draws of an entry differ between calls, and between steps unless the seed is the same to
    the last bit. Blocks on the host read it out of a pattern that is kept.
    """

    def __init__(self, seed: Tensor) -> None:
        """Begin with the bits of a 0-dim tensor, such as a gradient's norm."""
        self._seed = seed.detach().float().reshape(()).view(torch.int32)
        self._calls = 0
        self._starts: list[int] = []

    def rounded(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """Round `values`, a float32 tensor that is overwritten, to what `dtype` can hold.

        Below the normal range of float16 (6e-5) rounding is partly to the nearest.

        Cost: two passes over `values`; beyond a block of the host six, and over its memory again.
        """
        mask = (1 << DROPPED[dtype]) - 1
        values.view(torch.int32).add_(self._noise(values, mask)).bitwise_and_(~mask)
        self._calls += 1
        return values

    def _noise(self, values: Tensor, mask: int) -> Tensor:
        """Draw the bits that are added to each entry's."""
        size, at = values.numel(), self._calls % MANY
        if values.is_cpu and self._seed.is_cpu and size <= CACHED:
            if at == 0 or not self._starts:
                counts = torch.arange(MANY, device="cpu") + (self._calls - at + 1)
                self._starts = self._start((counts * STRIDE % 2**31).int()).tolist()
            start = self._starts[at]
            return _kept(mask)[start : start + size].view(values.shape)
        start = self._start((self._calls + 1) * STRIDE % 2**31).to(values.device)
        numbers = torch.arange(size, device=values.device, dtype=torch.int32) + start
        return _hashed(numbers).bitwise_and_(mask).view(values.shape)

    def _start(self, call: Tensor | int) -> Tensor:
        return _hashed(self._seed + call) % CACHED


@lru_cache(maxsize=2)
def _kept(mask: int) -> Tensor:
    """Hash numbers enough for a block that starts anywhere in one."""
    return _hashed(torch.arange(2 * CACHED, dtype=torch.int32, device="cpu")).bitwise_and_(mask)


def _hashed(numbers: Tensor) -> Tensor:
    """Mix int32 numbers until neighbours have nothing in common (after lowbias32, C. Wellons)."""
    mixed = numbers.clone()
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - 2**32), (16, 1)):
        high = (mixed >> shift).bitwise_and_(2 ** (32 - shift) - 1)  # without copies of the sign
        mixed.bitwise_xor_(high).mul_(factor)
    return mixed
