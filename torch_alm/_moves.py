"""How entries of theta are saved, moved and brought back.

On a CPU each block goes through the cache once: saved, then moved. Accelerators take whole tensors
and never wait for the host.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torch_alm import _gradients as gradients
from torch_alm._rounding import DROPPED, Noise

Memory: TypeAlias = dict[Tensor, Tensor]
Rounding: TypeAlias = Literal["nearest", "stochastic"]

# Three blocks of 262,144 entries fit a shared cache, and are long enough that calls do not count.
BLOCK = 262_144
BLOCKWISE = ("cpu",)


class Piece(NamedTuple):
    """A piece of theta, what it was, and the move it is meant to make: `scale * direction`."""

    theta: Tensor
    saved: Tensor
    direction: Tensor
    scale: float | Tensor
    adaptive: bool
    owner: Tensor

    def step(self) -> Tensor:
        """The intended move, in float32 or wider; exactly 0 where the scale is."""
        # A factor 1/||g|| may be beyond half precision even where the product is not.
        step = _wide(self.direction)
        if self.adaptive:
            step = _squared(_wide(self.saved)) * step
        if isinstance(self.scale, Tensor):
            return _chosen(self.scale, step)
        return step * self.scale

    def fill(self, noise: Noise | None) -> None:
        """theta <- saved + step, rounded once, whatever theta held."""
        theta, saved, direction, scale = self.theta, self.saved, self.direction, self.scale
        wide = torch.promote_types(theta.dtype, torch.float32) == theta.dtype == direction.dtype
        one_pass = wide and not self.adaptive
        if one_pass and not isinstance(scale, Tensor) and not direction.is_sparse:
            torch.add(saved, direction, alpha=scale, out=theta)
        else:
            theta.copy_(saved)
            self.add(noise)

    def add(self, noise: Noise | None) -> None:
        """theta <- saved + step, rounded once; theta holds what was saved."""
        if noise is not None and self.theta.dtype in DROPPED:
            moved = self.saved.float() + self.step()
            self.theta.copy_(noise.rounded(moved, self.theta.dtype))
        elif isinstance(self.scale, Tensor) or self.adaptive:
            self.theta.add_(self.step())
        else:
            self.theta.add_(_wide(self.direction), alpha=self.scale)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _squared(theta: Tensor) -> Tensor:
    """|theta|^2, entry by entry."""
    return (theta * theta.conj()).real if theta.is_complex() else theta * theta


def _chosen(scale: Tensor, step: Tensor) -> Tensor:
    """scale * step, and 0 where the scale is: the step may hold what times 0 is not 0."""
    if step.is_sparse:
        step = step.coalesce()
        chosen = _chosen(scale, step.values())
        return torch.sparse_coo_tensor(
            step.indices(), chosen, step.shape, is_coalesced=True, check_invariants=False
        )
    return (step * scale).masked_fill_(scale == 0, 0.0)


class Intent(NamedTuple):
    """A parameter, its direction, and the factor in front of it."""

    p: Tensor
    direction: Tensor
    scale: float | Tensor


class Moves:
    """theta + delta and back, within one `with` block."""

    def __init__(self, memory: Memory) -> None:
        """Begin where theta is. `memory` is where copies may be kept for the next time."""
        self._memory = memory
        self._kept: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def there(
        self, intents: Iterable[Intent], *, adaptive: bool, noise: Noise | None
    ) -> list[Piece]:
        """Save theta and move it; the pieces, for whoever asks how far they went."""
        pieces = [piece for intent in intents for piece in self._pieces(intent, adaptive)]
        for group in _batches(pieces):
            saves = [(piece.theta, piece.saved) for piece in group]
            _copy([(saved, theta) for theta, saved in saves])
            self._kept += saves
            for piece in group:
                piece.add(noise)
        return pieces

    def _pieces(self, intent: Intent, adaptive: bool) -> Iterable[Piece]:
        """Blocks on a CPU, sharing memory with the parameter; else the whole of it."""
        p, direction, scale = intent
        theta, direction = gradients.local(p), gradients.local(direction)
        room = self._room(p, theta)
        dense = direction.layout == torch.strided and direction.is_contiguous()
        if theta.device.type not in BLOCKWISE or not (theta.is_contiguous() and dense):
            return [Piece(theta, room, direction, scale, adaptive, p)]
        blocks = zip(*(t.view(-1).split(BLOCK) for t in (theta, room, direction)), strict=True)
        return [Piece(t, saved, g, scale, adaptive, p) for t, saved, g in blocks]

    def _room(self, p: Tensor, theta: Tensor) -> Tensor:
        """Memory for a copy of theta; on a CPU it is kept for the next time."""
        room = self._memory.get(p)
        if room is None or _layout(room) != _layout(theta):
            room = torch.empty_like(theta)
            if theta.device.type in BLOCKWISE:
                self._memory[p] = room
        return room

    @torch.no_grad()
    def back(self) -> None:
        """Copy back what was saved, bit for bit, and nothing else."""
        _copy(self._kept)
        self._kept.clear()


class Swaps(Moves):
    """Likewise with memory exchanged instead of copied: what a parameter had is never written."""

    @torch.no_grad()
    def there(
        self, intents: Iterable[Intent], *, adaptive: bool, noise: Noise | None
    ) -> list[Piece]:
        """Point each parameter at theta + delta."""
        pieces: list[Piece] = []
        for p, direction, scale in intents:
            check_swappable(p)
            theta = p.detach()
            pieces.append(Piece(self._room(p, theta), theta, direction, scale, adaptive, p))
            pieces[-1].fill(noise)
            self._kept.append((p, theta))
            p.data = pieces[-1].theta
        return pieces

    def back(self) -> None:
        """Point each parameter at its own memory again."""
        for p, theta in self._kept:
            p.data = theta
        self._kept.clear()


def check_swappable(p: Tensor) -> None:
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


def _layout(tensor: Tensor) -> object:
    """What must agree for one tensor to hold a copy of the other, block by block."""
    return tensor.shape, tensor.dtype, tensor.device, tensor.is_contiguous()


def _batches(pieces: Sequence[Piece]) -> Iterable[Sequence[Piece]]:
    """What is saved before anything of it moves: one block at a time while it is in the cache."""
    if all(piece.theta.device.type in BLOCKWISE for piece in pieces):
        return [[piece] for piece in pieces]
    return [pieces]


def _copy(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Each first from its second, in one call per kind of tensor."""
    groups: dict[object, tuple[list[Tensor], list[Tensor]]] = {}
    for to, origin in pairs:
        group = groups.setdefault((to.device, to.dtype), ([], []))
        group[0].append(to)
        group[1].append(origin)
    for to, origin in groups.values():
        torch._foreach_copy_(to, origin)  # pyright: ignore[reportPrivateUsage]
