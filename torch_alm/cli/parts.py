"""Batches larger than the memory: the same mean, a part of the rows at a time."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torch_alm.language import Batch


def mean_in_parts(kernel: Callable[[Batch], Tensor], batch: Batch, size: int | None) -> Tensor:
    """Mean over the rows of a batch, of which a part at a time is in memory.

    The forward pass of a part keeps its rows alone and is repeated in the backward pass, with the
    same dropout: value and gradient are those of the whole batch, wherever the weights stand. SAM
    needs that: parts with a perturbation each would be another method. The kernel is the mean over
    the rows it is given; without a size, over all of them at once.

    Cost: with more than one part, a forward pass more in each backward pass.
    """
    whole = len(batch["input_ids"])
    if size is None or whole <= size:
        return kernel(batch)
    found = torch.zeros((), device=batch["input_ids"].device)
    for start in range(0, whole, size):
        part = part_of(batch, start, start + size)
        share = len(part["input_ids"]) / whole
        found = found + share * checkpoint(kernel, part, use_reentrant=False)
    return found


def part_of(batch: Batch, start: int, stop: int) -> Batch:
    """Some rows of a batch, as wide as the longest of them."""
    rows = {name: tensor[start:stop] for name, tensor in batch.items()}
    width = int(rows["attention_mask"].any(0).nonzero().max()) + 1
    return {name: t[:, :width] if t.dim() == 2 else t for name, t in rows.items()}
