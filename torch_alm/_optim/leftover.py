"""A closure that does not clear the gradients it finds: they would count in both passes of SAM."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor


@contextmanager
def noticed(params: Sequence[Tensor], owner: str) -> Iterator[None]:
    """Warn if the closure run inside adds to gradients that are there already.

    Cost: a device synchronisation, if there are any.
    """
    p = min((p for p in params if p.grad is not None), key=Tensor.numel, default=None)
    before = None if p is None else p.grad
    found = (before is not None and not before.is_sparse) and bool(before.any())
    version = before._version if before is not None and found else -1
    yield
    # Clearing in place and adding are two writes.
    is_added_to = found and p is not None and p.grad is before
    if is_added_to and before is not None and before._version == version + 1:
        warnings.warn(
            f"{owner}.step(closure): the closure adds to gradients that were there before it, so "
            "that they count twice and turn the perturbation. A closure clears them first "
            "(Lightning's does not while it accumulates): did you mean `backward(objective, "
            "weight=1 / parts)` for each micro-batch, and then `step()`?",
            stacklevel=8,
        )
