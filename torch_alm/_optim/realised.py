"""Perturbations as they took place: how much of one the weights' dtype held."""

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from torch_alm._optim import gradients, shards

# A parameter, where a piece of it is now, where it was, and the move that was meant for it.
Moved: TypeAlias = tuple[Tensor, Tensor, Tensor, Callable[[], Tensor]]


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
        """True if less than half of the intended perturbation took place."""
        return self.length * self.cosine < 0.5


def warn_swallowed(realised: Realised, owner: str, rho: float, *, stacklevel: int) -> None:
    """Warn if the weights' dtype has dropped most of a perturbation."""
    if realised.is_swallowed:
        warnings.warn(
            f"{owner}: the weights' dtype swallows the perturbation. {realised.share:.2%} of the "
            f"entries moved, and {realised.length * realised.cosine:.1%} of rho = {rho} in the "
            "intended direction; what follows is about the base optimizer. Did you mean float32 "
            'weights under bfloat16 autocast, or `rounding="stochastic"`?',
            stacklevel=stacklevel,
        )


@dataclass(frozen=True)
class Perturbation:
    """The outcome of `perturbed`.

    Attributes:
        realised: with `diagnose=True`, how much of the perturbation the weights' dtype held.
    """

    realised: Realised | None = None
    _norm: Tensor = field(default_factory=lambda: torch.zeros(()), repr=False)
    _entries: int = field(default=0, repr=False)

    @property
    def grad_norm(self) -> float:
        """The joint L2 norm of the direction; on an accelerator reading it waits for the device.

        `nan` or `inf` if it was not finite, and then, as for 0, nothing moved.
        """
        return self._norm.item()

    @property
    def moved(self) -> int:
        """The number of entries of theta that were given a perturbation."""
        norm = self.grad_norm
        return self._entries if norm != 0 and math.isfinite(norm) else 0


@torch.no_grad()
def realised(pieces: Iterable[Moved]) -> Realised:
    """Compare, over all pieces and all ranks; `nan` if nothing was to move.

    Cost: five passes over theta in float64; one device synchronisation.
    """
    total = torch.zeros(5, dtype=torch.float64)
    for group in gradients.alike(pieces, lambda piece: piece[0]):
        part, like = torch.stack([_sums(*piece[1:]) for piece in group]).sum(0), group[0][0]
        part = shards.reduced(part, like) if gradients.is_sharded(like) else part
        total += part.to(total.device)
    moved, meant, both, changed, wanted = total.tolist()
    if not wanted:
        return Realised(float("nan"), float("nan"), float("nan"))
    cosine = both / (moved * meant) ** 0.5 if moved else 0.0
    return Realised((moved / meant) ** 0.5, cosine, changed / wanted)


def _sums(theta: Tensor, saved: Tensor, step: Callable[[], Tensor]) -> Tensor:
    """Add up |moved|^2, |meant|^2, <moved, meant>, the entries that changed or should have."""
    moved, meant = _wide(theta) - _wide(saved), step()
    meant = _wide(meant.to_dense() if meant.is_sparse else meant)
    pairs = (moved, moved), (meant, meant), (moved, meant)
    products = [(a * b.conj()).sum().real for a, b in pairs]
    counts = [(x != 0).sum().to(torch.float64) for x in (moved, meant)]
    return torch.stack([*products, *counts])


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float64))
