"""Move theta to a nearby point and bring it back, bit for bit: the only code that does.

On a CPU each block goes through the cache once: saved, then moved. Accelerators take whole tensors
and never wait for the host.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torch_alm._guards import eager, held
from torch_alm._optim import aliases, gradients, shards
from torch_alm._optim.gradients import Register
from torch_alm._optim.realised import Perturbation, realised
from torch_alm._optim.rounding import DROPPED, Noise, Rounding
from torch_alm._optim.settings import number

Params: TypeAlias = Iterable[Tensor] | Iterable[Mapping[str, Any]]
Memory: TypeAlias = dict[Tensor, Tensor]
Pairs: TypeAlias = list[tuple[Tensor, Tensor]]

# With the order of its entries, what must agree for one tensor to hold a copy of another.
KIND = attrgetter("shape", "dtype", "device")


class Piece(NamedTuple):
    """A piece of theta, what it was, and the move it is meant to make: `scale * direction`."""

    theta: Tensor
    saved: Tensor
    direction: Tensor
    scale: float | Tensor
    adaptive: bool
    owner: Tensor

    def step(self) -> Tensor:
        """Compute the intended move, in float32 or wider; exactly 0 where the scale is."""
        # A factor 1/||g|| may be beyond half precision even where the product is not.
        step = _wide(self.direction)
        if self.adaptive:
            step = _squared(_wide(self.saved)) * step
        if isinstance(self.scale, Tensor):
            return _chosen(self.scale, step)
        return step * self.scale

    def add(self, noise: Noise | None) -> None:
        """theta <- saved + step, rounded once; theta holds what was saved."""
        narrow, direction = self.theta.dtype, self.direction
        is_drawn = noise is not None and narrow in DROPPED
        theta = self.saved.float() if is_drawn else self.theta
        if isinstance(self.scale, Tensor) or self.adaptive:
            theta.add_(self.step())
        elif theta.dtype in DROPPED and direction.dtype == narrow and not direction.is_sparse:
            # In float32 inside, as its factor is; `add_` rounds the factor to the narrow type.
            theta.addcmul_(direction, theta.new_ones(()), value=self.scale)
        else:
            theta.add_(_wide(direction), alpha=self.scale)
        if noise is not None and is_drawn:
            self.theta.copy_(noise.rounded(theta, narrow))


class Intent(NamedTuple):
    """A parameter, its direction, and the factor in front of it."""

    p: Tensor
    direction: Tensor
    scale: float | Tensor


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _squared(theta: Tensor) -> Tensor:
    """Compute |theta|^2, entry by entry."""
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


def _copy(pairs: Pairs) -> None:
    """Fill each first tensor from its second, in one call per kind of tensor."""
    for group in gradients.alike(pairs, lambda pair: pair[0]):
        to, origin = zip(*group, strict=True)
        torch._foreach_copy_(to, origin)  # pyright: ignore[reportPrivateUsage]


@dataclass(eq=False)
class Excursion:
    """Theta on its way to theta + delta and back, within one `with` block.

    Args:
        radii: the signed radius of each parameter; see `radii_of`.
        eps: added to the norm.
        adaptive: measure and move in units of each weight.
        rounding: as in `perturbed`.
        diagnose: find out how much of delta the weights' dtype holds.
        memory: where copies may be kept for the next time.
    """

    radii: Mapping[Tensor, float]
    eps: float
    adaptive: bool
    rounding: Rounding
    diagnose: bool
    memory: Memory
    _buffers: Memory = field(default_factory=dict)
    _saved: Pairs = field(default_factory=list)
    _restore: ClassVar[Callable[[Pairs], None]] = staticmethod(_copy)

    @eager
    def go(self) -> Perturbation:
        """Move theta, and clear `.grad`, the direction; both are as before if that fails."""
        found = gradients.read(self.radii)
        self._buffers.update(self.memory)
        self.memory.clear()  # a nested excursion must not write where this one saves
        try:
            with held():
                gradients.put(self.radii, [None] * len(found))
                torch.clear_autocast_cache()
                return self._moved(found)
        except BaseException:
            gradients.put(self.radii, found)
            self.back()
            raise

    @torch.no_grad()
    def _moved(self, found: Register) -> Perturbation:
        """Choose factors by one norm over all, and move."""
        radii = self.radii
        pairs = zip(radii, found, strict=True)
        directions = {p: g for p, g in pairs if g is not None and radii[p] != 0}
        here = [gradients.local(p) for p in directions]
        for p, g in directions.items():
            if gradients.is_sharded(g) and gradients.is_sharded(p):
                directions[p] = shards.aligned(g, p)
        if gradients.share_memory(here):
            directions = self._merged(directions, here)
        weighed = [p.abs() * _wide(g) if self.adaptive else g for p, g in directions.items()]
        norm = gradients.norm(weighed)
        factors = self._factors(norm, {theta.device for theta in here})
        places = {p: (radii[p], gradients.local(p).device) for p in directions}
        intents = [Intent(p, g, factors[places[p]]) for p, g in directions.items() if factors]
        pieces = self._there(intents, Noise(norm) if self.rounding == "stochastic" else None)
        moves = ((piece.owner, piece.theta, piece.saved, piece.step) for piece in pieces)
        how_far = realised(moves) if self.diagnose else None
        return Perturbation(how_far, norm, sum(p.numel() for p in directions))

    def _factors(
        self, norm: Tensor, devices: set[torch.device]
    ) -> dict[tuple[float, torch.device], float | Tensor]:
        """rho / (||g|| + eps) by radius and device; nothing where ||g|| is 0 or not finite.

        On a device 0 stands for nothing and is chosen there: the host would have to wait for it.
        """
        pairs = list(product({*self.radii.values()}, devices))
        if not all(device.type in gradients.HOST for device in devices):
            usable = norm.isfinite() & (norm != 0)
            inverse = torch.where(usable, 1 / (norm + self.eps), 0.0)
            there = {device: inverse.to(device) for device in devices}
            return {(r, device): r * there[device] for r, device in pairs}
        length = norm.item()
        is_usable = length != 0 and math.isfinite(length)
        return {(r, d): r / (length + self.eps) for r, d in pairs} if is_usable else {}

    def _merged(self, directions: dict[Tensor, Tensor], here: list[Tensor]) -> dict[Tensor, Tensor]:
        """Give one direction per memory: parameters that are the same memory move as one."""
        aliases.check(here, "perturbed")
        merged: dict[object, tuple[Tensor, Tensor]] = {}
        for (p, g), theta in zip(directions.items(), here, strict=True):
            first, total = merged.get(aliases.place(theta), (p, None))
            merged[aliases.place(theta)] = (first, g if total is None else total + g)
        return dict(merged.values())

    def _there(self, intents: list[Intent], noise: Noise | None) -> list[Piece]:
        """Save theta and move it; on a CPU one block at a time while it is in the cache."""
        buffers = [self._buffer(intent.p, gradients.local(intent.p)) for intent in intents]
        pairs = zip(intents, buffers, strict=True)
        pieces = [piece for intent, buffer in pairs for piece in self._pieces(intent, buffer)]
        on_host = all(piece.theta.device.type in gradients.HOST for piece in pieces)
        if not on_host:
            _copy([(piece.saved, piece.theta) for piece in pieces])
            self._saved += [(piece.theta, piece.saved) for piece in pieces]
        for piece in pieces:
            if on_host:
                piece.saved.copy_(piece.theta)
                self._saved.append((piece.theta, piece.saved))
            piece.add(noise)
        return pieces

    def _pieces(self, intent: Intent, buffer: Tensor) -> list[Piece]:
        """Divide a parameter into blocks on a CPU, sharing its memory; else take the whole."""
        p, direction, scale = intent
        theta, direction = gradients.local(p), gradients.local(direction)
        dense = direction.layout == torch.strided and direction.is_contiguous()
        on_host = theta.device.type in gradients.HOST
        # Noise is as wide as float32, and slow to draw where it does not fit the cache.
        run = gradients.RUN if self.rounding == "nearest" else gradients.BLOCK
        if theta.numel() <= run or not (on_host and theta.is_contiguous() and dense):
            return [Piece(theta, buffer, direction, scale, self.adaptive, p)]
        whole = (theta, buffer, direction)
        blocks = zip(*(t.view(-1).split(run) for t in whole), strict=True)
        return [Piece(t, saved, g, scale, self.adaptive, p) for t, saved, g in blocks]

    def _buffer(self, p: Tensor, theta: Tensor) -> Tensor:
        """Find memory for a copy of theta; on a CPU it is kept for the next time.

        What was kept for a theta that has moved since, or has another dtype, is let go.
        """
        buffer = self._buffers.pop(p, None)
        fits = buffer is not None and KIND(buffer) == KIND(theta)
        if buffer is None or not fits or buffer.is_contiguous() != theta.is_contiguous():
            buffer = torch.empty_like(theta)
        if theta.device.type in gradients.HOST:
            self._buffers[p] = buffer
        return buffer

    @eager
    @torch.no_grad()
    def back(self) -> None:
        """Bring theta back, bit for bit; once more does no harm."""
        with held():
            self._restore(self._saved)
            self._saved.clear()
            torch.clear_autocast_cache()
            self.memory.update(self._buffers)


def radii_of(params: Params, rho: float, sign: int) -> dict[Tensor, float]:
    """Find each parameter's signed radius, once per parameter however often it is listed."""
    radii: dict[Tensor, float] = {}
    for entry in params:
        if isinstance(entry, Tensor):
            radii.setdefault(entry, sign * rho)
            continue
        own = check_radius(entry["rho"], "perturbed: a group's rho") if "rho" in entry else rho
        for p in entry["params"]:
            radii.setdefault(p, sign * own)
    return radii


def check_radius(value: Any, name: str) -> float:  # noqa: ANN401
    """Convert to a finite number, at least 0, or raise a `ValueError` that names it."""
    value = number(value, name)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(
            f"{name} is {value!r}, which no ball has as its radius; theta would move the wrong way "
            "or nowhere. Did you mean a small number such as 0.05 (and `ReverseSAM` to descend)?"
        )
    return value
