"""Move theta to a nearby point and bring it back, bit for bit: the only code that does.

Source: the procedure Grad_SAM of Algorithm 1 in SAUL (section 4.2), after Foret et al. 2021.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from torch_alm import _gradients as gradients

Params: TypeAlias = Iterable[Tensor] | Iterable[Mapping[str, Any]]
Block: TypeAlias = tuple[Tensor, Tensor]
Memory: TypeAlias = dict[Tensor, Tensor]

# On a CPU each block goes through the cache once: saved, then moved. 65,536 entries fit a core's
# second-level cache three times over; accelerators take whole tensors.
BLOCK = 65_536


@dataclass(frozen=True)
class Perturbation:
    """What `perturbed` did.

    Attributes:
        grad_norm: the joint L2 norm of the direction; `nan` or `inf` if it was not finite, and
            then, as for 0, nothing moved.
        moved: the number of entries of theta that were given a perturbation.
    """

    grad_norm: float
    moved: int


@contextmanager
def perturbed(
    params: Params,
    rho: float,
    *,
    sign: int = 1,
    eps: float = 1e-12,
    adaptive: bool = False,
    memory: Memory | None = None,
) -> Iterator[Perturbation]:
    r"""Inside the `with` block, theta is at theta + delta; on exit it is back, bit for bit.

    With g the `.grad` at entry, over all parameters jointly,

        delta = sign * rho * g / (||g||_2 + eps).

    `.grad` is `None` inside. On exit only theta returns (the same values in the same storage, also
    after an exception); `.grad` is whatever the block left there. A zero or non-finite `||g||`
    moves nothing. The autocast cache, which would go on serving the old weights, is cleared on the
    way in and out.

    Args:
        params: parameters, or an optimizer's `param_groups`. A group's own `"rho"` takes the place
            of `rho`; parameters with radius 0 stay where they are and do not count in the norm.
        rho: the length of delta, in the units of theta. At least 0.
        sign: +1 moves where the differentiated quantity grows, -1 where it falls.
        eps: added to the norm, as the paper's epsilon_pert.
        adaptive: measure and move in units of each weight (ASAM, Kwon et al. 2021):
            delta = sign * rho * theta^2 g / (|| |theta| g ||_2 + eps).
        memory: where copies of theta may be kept for the next call. On a CPU fresh memory costs
            several times the copy itself.

    Raises:
        ValueError: if a radius or `eps` is negative or not finite, or `sign` is not +1 or -1.

    Cost: no backward pass; one copy of the perturbed parameters inside the block; seven passes over
    their memory in all; one device synchronisation.

    Example:
        >>> theta = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> theta.square().sum().backward()  # the gradient is (6, 8)
        >>> with perturbed([theta], rho=1.0):
        ...     print(theta.detach())
        tensor([3.6000, 4.8000])
        >>> theta.detach()
        tensor([3., 4.])
    """
    if sign not in (1, -1):
        raise ValueError(
            f"perturbed: sign is {sign!r}; +1 climbs, -1 descends. Which did you mean?"
        )
    check_radius(eps, "perturbed: eps")
    radii = {p: sign * radius for p, radius in _radii(params, rho).items()}
    directions = {p: p.grad for p in radii}
    gradients.clear(radii)
    rooms = _borrow(memory)
    blocks: list[Block] = []
    torch.clear_autocast_cache()
    try:
        perturbation = _move(radii, directions, blocks, rooms, eps, adaptive)
        directions.clear()
        yield perturbation
    finally:
        _restore(blocks)
        torch.clear_autocast_cache()
        if memory is not None:
            memory.update(rooms)


def check_radius(value: float, name: str) -> float:
    """A finite number, at least 0, or a `ValueError` that names it."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(
            f"{name} is {value!r}, which no ball has as its radius; theta would move the wrong way "
            "or nowhere. Did you mean a small number such as 0.05 (and `ReverseSAM` to descend)?"
        )
    return value


def _radii(params: Params, rho: float) -> dict[Tensor, float]:
    """Each parameter's radius, once per parameter however often it is listed."""
    check_radius(rho, "perturbed: rho")
    radii: dict[Tensor, float] = {}
    for entry in params:
        if isinstance(entry, Tensor):
            radii.setdefault(entry, rho)
        else:
            radius = check_radius(float(entry.get("rho", rho)), "perturbed: a group's rho")
            for p in entry["params"]:
                radii.setdefault(p, radius)
    return radii


def _borrow(memory: Memory | None) -> Memory:
    """Take the kept memory away while it is in use, so that a nested call cannot write into it."""
    rooms = dict(memory or {})
    if memory is not None:
        memory.clear()
    return rooms


@torch.no_grad()
def _move(
    radii: Mapping[Tensor, float],
    directions: Mapping[Tensor, Tensor | None],
    blocks: list[Block],
    rooms: Memory,
    eps: float,
    adaptive: bool,
) -> Perturbation:
    """theta <- theta + delta, each block saved in `blocks` before it moves."""
    moving = {p: g for p, g in directions.items() if g is not None and radii[p] != 0}
    norm = _norm(moving, adaptive)
    if norm == 0 or not math.isfinite(norm):
        return Perturbation(norm, 0)
    for p, g in moving.items():
        scale = radii[p] / (norm + eps)
        for theta, saved, direction in _blocks(p, g, rooms):
            saved.copy_(theta)
            blocks.append((theta, saved))
            # A factor 1/||g|| may be beyond half precision even where the product is not.
            step = direction.to(torch.promote_types(direction.dtype, torch.float32))
            theta.add_(saved * saved * step if adaptive else step, alpha=scale)
    return Perturbation(norm, sum(p.numel() for p in moving))


def _norm(moving: Mapping[Tensor, Tensor], adaptive: bool) -> float:
    """The joint length of the directions, in units of each weight if `adaptive`."""
    register = [p.abs() * g for p, g in moving.items()] if adaptive else list(moving.values())
    return gradients.norm(register).item()


def _blocks(p: Tensor, g: Tensor, rooms: Memory) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
    """Pieces of theta with the room to save them and their direction, sharing memory with `p`."""
    theta, direction = gradients.local(p), gradients.local(g)
    saved = _room(p, theta, rooms)
    dense = direction.layout == torch.strided and direction.is_contiguous()
    if theta.device.type != "cpu" or not (theta.is_contiguous() and dense):
        return [(theta, saved, direction)]
    pieces = (t.view(-1).split(BLOCK) for t in (theta, saved, direction))
    return zip(*pieces, strict=True)


def _room(p: Tensor, theta: Tensor, rooms: Memory) -> Tensor:
    """Memory for a copy of theta; on a CPU it is kept for the next time."""
    room = rooms.get(p)
    if room is None or room.shape != theta.shape or room.dtype != theta.dtype:
        room = torch.empty_like(theta)
        if theta.device.type == "cpu":
            rooms[p] = room
    return room


@torch.no_grad()
def _restore(blocks: list[Block]) -> None:
    """Copy back what was saved, and nothing else."""
    for theta, saved in blocks:
        theta.copy_(saved)
    blocks.clear()


@torch.no_grad()
def scaled_step(params: Iterable[Tensor], scale: float, step: Callable[[], object]) -> None:
    """theta <- theta + scale * (the move that `step` makes).

    Cost: one copy of the parameters; none when `scale` is 1.
    """
    if scale == 1.0:
        step()
        return
    theta = [gradients.local(p) for p in params if p.grad is not None]
    before = [t.clone() for t in theta]
    step()
    for t, start in zip(theta, before, strict=True):
        torch.lerp(start, t, scale, out=t)
