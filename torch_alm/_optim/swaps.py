"""Move theta by exchanging memory instead of copying: what a parameter had is never written."""

import torch
from torch import Tensor

from torch_alm._optim import gradients
from torch_alm._optim.moves import Excursion, Intent, Pairs, Piece
from torch_alm._optim.rounding import DROPPED, Noise


class Swap(Excursion):
    """An excursion that points each parameter at theta + delta, and at its own memory again."""

    def _merged(self, directions: dict[Tensor, Tensor], here: list[Tensor]) -> dict[Tensor, Tensor]:
        merged = super()._merged(directions, here)
        if len(merged) < len(directions):
            raise ValueError(
                "perturbed: swap=True points parameters at new memory, and some of them are the "
                "same memory, which would come apart. Did you mean swap=False?"
            )
        return merged

    def _there(self, intents: list[Intent], noise: Noise | None) -> list[Piece]:
        pieces: list[Piece] = []
        for intent in intents:
            p, theta = intent.p, intent.p.detach()
            _check_swappable(p)
            there = self._buffer(p, theta)
            for piece in self._pieces(intent, there):
                pieces.append(piece._replace(theta=piece.saved, saved=piece.theta))
                _fill(pieces[-1], noise)
            self._saved.append((p, theta))
            p.data = there
        return pieces

    @staticmethod
    def _restore(pairs: Pairs) -> None:
        for p, theta in pairs:
            p.data = theta


def _fill(piece: Piece, noise: Noise | None) -> None:
    """theta <- saved + step, rounded once, whatever theta held."""
    theta, saved, direction, scale = piece.theta, piece.saved, piece.direction, piece.scale
    alike = theta.dtype == direction.dtype and not direction.is_sparse
    if noise is not None or piece.adaptive or not alike or isinstance(scale, Tensor):
        theta.copy_(saved)
        piece.add(noise)
    elif theta.dtype in DROPPED:  # in float32 inside, as in `Piece.add`
        torch.addcmul(saved, direction, theta.new_ones(()), value=scale, out=theta)
    else:
        torch.add(saved, direction, alpha=scale, out=theta)


def _check_swappable(p: Tensor) -> None:
    """Raise if somebody else looks into the memory of this parameter, and would see the old one."""
    others = "an FSDP2 or tensor-parallel engine" if gradients.is_sharded(p) else ""
    if not others and p.untyped_storage().nbytes() != p.numel() * p.element_size():
        others = "other tensors, of which it is a part,"
    if not others and p.is_cuda and torch.cuda.is_current_stream_capturing():
        others = "the CUDA graph being captured"
    if others:
        raise ValueError(
            f"perturbed: swap=True points a parameter of shape {tuple(p.shape)} at new memory, and "
            f"{others} would go on reading the old one: the second pass would be at theta. Did you "
            "mean swap=False?"
        )
