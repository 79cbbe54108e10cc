"""A closure that does not clear the gradients it finds: they would count in both passes of SAM."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from torch_alm._optim.gradients import is_sharded


@contextmanager
def noticed(params: Sequence[Tensor], owner: str) -> Iterator[None]:
    """Warn if the closure run inside adds to gradients that are there already.

    Cost: a device synchronisation, if there are any.
    """
    p = min((p for p in params if p.grad is not None), key=Tensor.numel, default=None)
    before = None if p is None else p.grad
    if p is None or before is None or before.is_sparse or is_sharded(before) or not before.any():
        yield
        return
    version = before._version
    yield
    if p.grad is before and before._version == version + 1:  # clearing in place is a write, too
        warnings.warn(
            f"{owner}.step(closure): the closure adds to gradients that were there before it, so "
            "that they count twice and turn the perturbation. A closure clears them first "
            "(Lightning's does not while it accumulates): did you mean `backward(objective, "
            "weight=1 / parts)` for each micro-batch, and then `step()`?",
            stacklevel=8,
        )
