"""Rounding to half precision that is right on average.

A perturbation of theta is often shorter than the distance between two neighbouring bfloat16
numbers: nearest rounding then drops it. Rounding up with the probability of the remainder keeps its
mean, at the price of noise. The noise is hashed from a seed, because drawing it costs more than
everything else together; so it needs no generator's state, is the same on all ranks and after a
resume, and no device waits for it.
"""

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

Rounding: TypeAlias = Literal["nearest", "stochastic"]

# How many bits of a float32 the narrower type lacks.
DROPPED = {torch.bfloat16: 16, torch.float16: 13}
STRIDE = 0x61C88647


def check_rounding(value: Any, name: str) -> Rounding:  # noqa: ANN401
    """Return one of the two words, or raise a `ValueError`."""
    if value not in ("nearest", "stochastic"):
        raise ValueError(f'{name} is {value!r}; it is "nearest" or "stochastic".')
    return value


class Noise:
    """A stream of rounding noise.

    Entry i of a call gets hash(start + i), and start is hashed from the seed and the number of the
    call: draws of an entry differ between calls, and between steps unless the seed is the same to
    the last bit.
    """

    def __init__(self, seed: Tensor) -> None:
        """Begin with the bits of a 0-dim tensor, such as a gradient's norm."""
        self._seed = seed.detach().float().reshape(()).view(torch.int32)
        self._calls = 0

    def round(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """Round `values`, a float32 tensor that is overwritten, to what `dtype` can hold.

        Below the normal range of float16 (6e-5) rounding is partly to the nearest.

        Cost: ten passes over `values`, and over its memory again.
        """
        self._calls += 1
        start = _hash(self._seed + self._calls * STRIDE % 2**31).to(values.device)
        entries = torch.arange(values.numel(), device=values.device, dtype=torch.int32)
        mask = (1 << DROPPED[dtype]) - 1
        noise = _hash(entries + start).bitwise_and_(mask).view(values.shape)
        values.view(torch.int32).add_(noise).bitwise_and_(~mask)
        return values


def _hash(numbers: Tensor) -> Tensor:
    """Mix int32 numbers until neighbours have nothing in common (after lowbias32, C. Wellons)."""
    mixed = numbers.clone()
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - 2**32), (16, 1)):
        high = (mixed >> shift).bitwise_and_(2 ** (32 - shift) - 1)  # without copies of the sign
        mixed.bitwise_xor_(high).mul_(factor)
    return mixed
