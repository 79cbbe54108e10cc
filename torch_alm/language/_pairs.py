"""The order in which a run sees its data."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch

T = TypeVar("T")


def pairs(
    forget: Sequence[T], retain: Sequence[T], batch_size: int, epochs: int, seed: int
) -> Iterator[tuple[list[T], list[T]]]:
    """Pairs of lists to collate, (retain, forget), of at most `batch_size` each.

    Every epoch visits each forget item once, in a new order; with each one comes a retain item
    drawn uniformly with replacement. The last pair of an epoch may be shorter. The same seed gives
    the same pairs.

    Raises:
        ValueError: nothing to forget, or nothing to retain.
    """
    if not forget or not retain:
        empty = "retain" if forget else "forget"
        raise ValueError(f"pairs: the {empty} set is empty; no step could be taken. Was it loaded?")
    random = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(len(forget), generator=random)
        for chosen in order.split(batch_size):
            drawn = torch.randint(len(retain), chosen.shape, generator=random)
            yield [retain[i] for i in drawn.tolist()], [forget[i] for i in chosen.tolist()]
