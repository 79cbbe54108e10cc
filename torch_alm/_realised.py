"""How much of a perturbation the weights' dtype held."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from torch_alm import _gradients as gradients
from torch_alm._moves import Piece


class Realised(NamedTuple):
    """The perturbation that took place against the one that was meant.

    Attributes:
        length: its length over the intended one; 1 is right.
        cosine: of the angle between them; 1 is right.
        share: of the entries that were to move, those that did.
    """

    length: float
    cosine: float
    share: float

    @property
    def is_swallowed(self) -> bool:
        """Whether less than half of the intended perturbation took place."""
        return self.length * self.cosine < 0.5


@torch.no_grad()
def realised(pieces: Iterable[Piece]) -> Realised:
    """Compare, over all pieces and all ranks; `nan` if nothing was to move.

    Cost: five passes over theta in float64; one device synchronisation.
    """
    groups: dict[object, list[Piece]] = {}
    for piece in pieces:
        groups.setdefault(gradients.kind(piece.owner), []).append(piece)
    total = torch.zeros(5, dtype=torch.float64)
    for group in groups.values():
        part = torch.stack([_sums(piece) for piece in group]).sum(0)
        total += gradients.over_shards(part, group[0].owner).to(total.device)
    moved, meant, both, changed, wanted = total.tolist()
    if not wanted:
        return Realised(float("nan"), float("nan"), float("nan"))
    cosine = both / (moved * meant) ** 0.5 if moved else 0.0
    return Realised((moved / meant) ** 0.5, cosine, changed / wanted)


def _sums(piece: Piece) -> Tensor:
    """||moved||^2, ||meant||^2, <moved, meant>, entries that changed, entries that should have."""
    moved = _wide(piece.theta) - _wide(piece.saved)
    step = piece.step()
    meant = _wide(step.to_dense() if step.is_sparse else step)
    pairs = (moved, moved), (meant, meant), (moved, meant)
    products = [(a * b.conj()).sum().real for a, b in pairs]
    counts = [(x != 0).sum().to(torch.float64) for x in (moved, meant)]
    return torch.stack([*products, *counts])


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float64))
