"""Move theta to a nearby point and bring it back, bit for bit: the only code that does.

Source: the procedure Grad_SAM of Algorithm 1 in SAUL (section 4.2), after Foret et al. 2021.
"""

# pyright: reportPrivateUsage=false

import math
import warnings
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from torch_alm._optim import gradients
from torch_alm._optim.gradients import is_sharded, shard
from torch_alm._optim.rounding import DROPPED, Noise, Rounding, check_rounding
from torch_alm._optim.wrapper import check_radius

Params: TypeAlias = Tensor | Iterable[Tensor] | Iterable[Mapping[str, Any]]

Move: TypeAlias = tuple[Tensor, Tensor, float]  # theta, direction, signed radius

SMALL = 16_384  # entries below which a call costs more than the moving


class Direction(NamedTuple):
    """The gradient of a first pass, and how many backwards it has served; none at first."""

    g: Mapping[Tensor, Tensor | None] = {}
    served: int = 0


class Memory(dict[Tensor, Tensor]):
    """Room for copies of theta; what is copied or pickled with it finds it empty."""

    def __reduce__(self) -> tuple[type["Memory"], tuple[()]]:
        """Keep the identity alone, which optimizers may share."""
        return Memory, ()


class Perturbation(NamedTuple):
    """The outcome of `perturbed`."""

    norm: Tensor  # joint L2 norm of the direction; where it is 0 or not finite nothing moved
    realised: float | None  # share of delta that narrow weights hold, along it, where it is watched
    is_lost: bool  # whether the direction is known not to be finite; a CPU tells without waiting


def perturbed(
    params: Params,
    rho: float,
    *,
    sign: int = 1,
    eps: float = 1e-12,
    adaptive: bool = False,
    rounding: Rounding = "nearest",
    memory: dict[Tensor, Tensor] | None = None,
) -> AbstractContextManager[Perturbation]:
    r"""Put theta at theta + delta inside the `with` block; on exit it is back, bit for bit.

    With g the `.grad` at entry, over all parameters jointly,

        delta = sign * rho * g / (||g||_2 + eps).

    `.grad` is `None` inside. On exit only theta returns (the same values in the same storage, also
    after an exception); `.grad` is whatever the block left there. A zero or non-finite `||g||`
    moves nothing; nor does a missing gradient, which warns. The autocast cache, which would serve
    the old weights, is cleared both ways.

    Args:
        params: parameters, one, or an optimizer's `param_groups`. A group's own `"rho"` takes the
            place of `rho`; parameters with radius 0 stay and do not count in the norm.
            Of an optimizer with a `"rho"` of its own in its groups (Adadelta) pass the parameters.
        rho: the length of delta, in the units of theta. At least 0.
        sign: +1 moves where the differentiated quantity grows, -1 where it falls.
        eps: added to the norm, as the paper's epsilon_pert.
        adaptive: measure and move in units of each weight (ASAM, Kwon et al. 2021):
            delta = sign * rho * theta^2 g / (|| |theta| g ||_2 + eps).
        rounding: "nearest" or, for bfloat16 and float16 weights, "stochastic": right on average
            where delta is shorter than the distance between neighbouring numbers.
        memory: where copies of large parameters may be kept for the next call. On a CPU fresh
            memory costs several times the copy itself.

    Raises:
        ValueError: if a radius or `eps` is negative or not finite, `sign` is not +1 or -1,
            `rounding` is unknown, or two parameters lie in the same memory. theta and `.grad` are
            then as before.
        RuntimeError: if an optimizer steps these parameters inside the block, or the block is
            entered again from inside. Afterwards it may be used again.

    Cost: no backward pass; one copy of the perturbed parameters inside the block, seven passes over
    their memory. One synchronisation on a CPU, none on an accelerator.

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
        raise ValueError(f"perturbed: sign is {sign!r}; +1 climbs, -1 descends. Which is it?")
    radii = radii_of(params, check_radius(rho, "perturbed: rho"), sign)
    eps = check_radius(eps, "perturbed: eps")
    check_rounding(rounding, "perturbed: rounding")
    gradients.check_weights(radii, "perturbed")
    return Excursion(radii, eps, adaptive, rounding, {} if memory is None else memory)


@dataclass(eq=False)
class Excursion(AbstractContextManager[Perturbation]):
    """Theta on its way to theta + delta and back; see `perturbed` for the arguments."""

    radii: dict[Tensor, float]  # signed
    eps: float
    adaptive: bool
    rounding: Rounding
    memory: dict[Tensor, Tensor]
    is_watched: bool = False  # whether the weights hold delta, some of which are narrow
    _saved: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    _copies: dict[Tensor, Tensor] = field(default_factory=dict)
    _hook: RemovableHandle | None = None  # inside the block

    def __enter__(self) -> Perturbation:
        """theta <- theta + delta; clear `.grad`, the direction."""
        if self._hook is not None:
            raise RuntimeError(
                "perturbed: its block is entered again from inside, and leaving it would bring "
                "theta back for both. Did you mean a second `perturbed(...)`?"
            )
        self._hook = register_optimizer_step_pre_hook(self._refuse_step)
        torch.clear_autocast_cache()
        try:
            with torch.no_grad():
                perturbation = self._go()
        except BaseException:
            self.__exit__()
            raise
        gradients.clear(self.radii)
        return perturbation

    def __exit__(self, *_: object) -> None:
        """Bring theta back, bit for bit, the last one first."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if self._saved:
            moved, saved = zip(*reversed(self._saved), strict=True)
            with torch.no_grad():
                torch._foreach_copy_(moved, saved)
            self._saved.clear()
        torch.clear_autocast_cache()
        self.memory.update(self._copies)

    def _refuse_step(self, optimizer: Optimizer, *_: object) -> None:
        if any(p in self.radii for p in gradients.parameters(optimizer)):
            raise RuntimeError(
                f"perturbed: {type(optimizer).__name__}.step() inside the block would be undone on "
                "leaving it. Did you mean to step after the block, with the gradient it leaves?"
            )

    def _go(self) -> Perturbation:
        """theta <- theta + sign * rho * g / (||g|| + eps), with one norm over all."""
        here = [(p, p.grad, rho) for p, rho in self.radii.items() if rho != 0]
        moves = [
            (p, g if type(g) is Tensor and g.layout is torch.strided else _direction(p, g), rho)
            for p, g, rho in here
            if g is not None
        ]
        if here and not moves:
            warnings.warn(
                "perturbed: no parameter has a gradient, so nothing moves. Did you mean to call "
                "`backward()` first?",
                stacklevel=3,
            )
        self.is_watched = self.is_watched and any(p.dtype in DROPPED for p, _, _ in moves)
        norm = gradients.norm([p.abs() * _widen(g) if self.adaptive else g for p, g, _ in moves])
        inverse = _inverse(norm, self.eps)
        if inverse is not None:
            noise = Noise(norm) if self.rounding == "stochastic" else None
            for p, g, rho in self._move_small(moves, inverse):
                self._move(p, shard(g), rho * inverse, noise)
        realised = None if inverse is None or not self.is_watched else self._compare(moves, inverse)
        is_lost = inverse is None and bool(norm)
        return Perturbation(norm, realised, is_lost)

    def _compare(self, moves: list[Move], inverse: float | Tensor) -> float | None:
        """Compare with theta before: the share of delta that the weights hold, along delta."""
        total = torch.zeros(2, device="cpu")
        for (p, g, rho), (theta, saved) in zip(moves, self._saved, strict=True):
            step, moved = self._step(saved, shard(g), rho * inverse), _widen(theta) - _widen(saved)
            along = torch.stack([(moved * step.conj()).real.sum(), step.abs().square().sum()])
            total += (gradients.reduce_shards(along, p) if is_sharded(p) else along).cpu()
        moved, meant = total.tolist()
        return moved / meant if meant else None

    def _move_small(self, moves: list[Move], inverse: float | Tensor) -> list[Move]:
        """Move what a host moves faster together; return the rest."""
        small, rest = dict[float, list[Move]](), list[Move]()
        if not isinstance(inverse, float) or self.adaptive or self.is_watched:
            return moves
        for move in moves:
            p, g, rho = move
            is_usual = type(p) in gradients.PLAIN and p.dtype == g.dtype and p.dtype not in DROPPED
            if p.numel() > SMALL or not is_usual:
                rest.append(move)
            else:
                small.setdefault(rho, []).append(move)
        for rho, together in small.items():
            thetas, directions, _ = zip(*together, strict=True)
            self._saved += [(p, p.clone()) for p in thetas]
            torch._foreach_add_(thetas, directions, alpha=rho * inverse)
        return rest

    def _move(self, p: Tensor, g: Tensor, scale: float | Tensor, noise: Noise | None) -> None:
        """Save and move one parameter."""
        theta = shard(p)
        copy = self._copy_of(p, theta).copy_(theta)
        self._saved.append((theta, copy))
        for here, direction in _blocks(theta, g):
            self._add(here, direction, scale, noise)

    def _add(self, theta: Tensor, g: Tensor, scale: float | Tensor, noise: Noise | None) -> None:
        """theta <- theta + delta, rounded once."""
        is_drawn = noise is not None and theta.dtype in DROPPED
        out = theta.float() if is_drawn else theta
        if self.adaptive or isinstance(scale, Tensor):
            torch.add(out, self._step(theta, g, scale), out=out)
        elif out.dtype in DROPPED and g.dtype == out.dtype:
            # In float32 inside, as its factor is; `add` rounds the factor to the narrow type.
            torch.addcmul(out, g, out.new_ones(()), value=scale, out=out)
        else:
            torch.add(out, g, alpha=scale, out=out)
        if noise is not None and is_drawn:
            theta.copy_(noise.round(out, theta.dtype))

    def _step(self, theta: Tensor, g: Tensor, scale: float | Tensor) -> Tensor:
        """Compute delta in float32 or wider; exactly 0 where the scale is."""
        # A factor 1/||g|| may be beyond half precision even where the product is not.
        scale = scale.to(g.device) if isinstance(scale, Tensor) else scale
        step = _widen(g) * scale
        if self.adaptive:
            step = _widen(theta).abs().square() * step
        return step.masked_fill_(scale == 0, 0.0) if isinstance(scale, Tensor) else step

    def _copy_of(self, p: Tensor, theta: Tensor) -> Tensor:
        """Find memory for a copy of theta; on a CPU it is kept for the next time."""
        copy = self.memory.pop(p, None)  # a nested excursion must not write where this one saves
        if copy is None or _kind(copy) != _kind(theta):
            copy = torch.empty_like(theta)
        if theta.device.type in gradients.HOST:
            self._copies[p] = copy
        return copy


def _inverse(norm: Tensor, eps: float) -> float | Tensor | None:
    """1 / (||g|| + eps); on a device, which is not waited for, 0 where nothing is to move."""
    if norm.device.type in gradients.HOST:
        length = norm.item()
        return 1 / (length + eps) if length and math.isfinite(length) else None
    return torch.where(norm.isfinite() & (norm != 0), 1 / (norm + eps), 0.0)


def _direction(p: Tensor, g: Tensor) -> Tensor:
    """Return the gradient, dense and distributed as its parameter is."""
    if is_sharded(g) and is_sharded(p) and g.placements != p.placements:
        return g.redistribute(p.device_mesh, p.placements)  # tensor parallel ones may be summands
    return g.to_dense() if g.is_sparse else g


def _blocks(theta: Tensor, g: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """Divide both for a host, which takes each block while it is in its cache."""
    is_divided = theta.device.type in gradients.HOST and theta.is_contiguous() and g.is_contiguous()
    if not is_divided or theta.numel() <= gradients.BLOCK:
        return [(theta, g)]
    return zip(*(t.view(-1).split(gradients.BLOCK) for t in (theta, g)), strict=True)


def _kind(t: Tensor) -> object:
    return t.dtype, t.device, t.shape, t.is_contiguous()


def _widen(t: Tensor) -> Tensor:
    return t.to(torch.promote_types(t.dtype, torch.float32))


def radii_of(params: Params, rho: float, sign: int) -> dict[Tensor, float]:
    """Find each parameter's signed radius, once per parameter however often it is listed."""
    radii: dict[Tensor, float] = {}
    for entry in [params] if isinstance(params, Tensor) else params:
        if isinstance(entry, Tensor):
            radii.setdefault(entry, sign * rho)
            continue
        own = check_radius(entry["rho"], "perturbed: a group's rho") if "rho" in entry else rho
        for p in entry["params"]:
            radii.setdefault(p, sign * own)
    return radii
