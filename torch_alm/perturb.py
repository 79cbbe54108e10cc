"""Move theta to a nearby point and bring it back, bit for bit: the only code that does.

Source: the procedure Grad_SAM of Algorithm 1 in SAUL (section 4.2), after Foret et al. 2021.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from torch_alm import _aliases as aliases
from torch_alm import _gradients as gradients
from torch_alm import _interrupts as interrupts
from torch_alm import _moves as moves
from torch_alm._eager import eager
from torch_alm._moves import Intent, Memory, Moves, Rounding, Swaps
from torch_alm._realised import Realised, realised
from torch_alm._rounding import Noise
from torch_alm._settings import number

Params: TypeAlias = Iterable[Tensor] | Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class Perturbation:
    """What `perturbed` did.

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


@contextmanager
def perturbed(
    params: Params,
    rho: float,
    *,
    sign: int = 1,
    eps: float = 1e-12,
    adaptive: bool = False,
    rounding: Rounding = "nearest",
    swap: bool = False,
    diagnose: bool = False,
    memory: Memory | None = None,
) -> Iterator[Perturbation]:
    r"""Inside the `with` block, theta is at theta + delta; on exit it is back, bit for bit.

    With g the `.grad` at entry, over all parameters jointly,

        delta = sign * rho * g / (||g||_2 + eps).

    `.grad` is `None` inside. On exit only theta returns (the same values in the same storage, also
    after an exception or Ctrl-C); `.grad` is whatever the block left there. A zero or non-finite
    `||g||` moves nothing. Two parameters on the same memory move as the one they are, along the sum
    of their gradients. The autocast cache, which would go on serving the old weights, is cleared on
    the way in and out.

    Args:
        params: parameters, or an optimizer's `param_groups`. A group's own `"rho"` takes the place
            of `rho`; parameters with radius 0 stay where they are and do not count in the norm.
            Of an optimizer with a `"rho"` of its own in its groups (Adadelta) pass the parameters.
        rho: the length of delta, in the units of theta. At least 0.
        sign: +1 moves where the differentiated quantity grows, -1 where it falls.
        eps: added to the norm, as the paper's epsilon_pert.
        adaptive: measure and move in units of each weight (ASAM, Kwon et al. 2021):
            delta = sign * rho * theta^2 g / (|| |theta| g ||_2 + eps).
        rounding: "nearest" or, for bfloat16 and float16 weights, "stochastic": right on average
            where delta is shorter than the distance between neighbouring numbers.
        swap: point the parameters at new memory instead of writing into theirs. Cheaper; only for
            plain tensors nobody else looks into (no FSDP2, no views, no CUDA graph).
        diagnose: report in `realised` how much of delta the weights' dtype held.
        memory: where copies of theta may be kept for the next call. On a CPU fresh memory costs
            several times the copy itself.

    Raises:
        ValueError: if a radius or `eps` is negative or not finite, `sign` is not +1 or -1,
            `rounding` is unknown, a parameter cannot be swapped, or two lie partly in the same
            memory. theta and `.grad` are then as before.

    Cost: no backward pass; one copy of the perturbed parameters inside the block. Passes over their
    memory, on a CPU: seven in all, four with `swap`; `rounding="stochastic"` about three times as
    many. One synchronisation on a CPU, none on an accelerator; `diagnose` adds one.

    Example:
        >>> theta = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> theta.square().sum().backward()  # the gradient is (6, 8)
        >>> with perturbed([theta], rho=1.0):
        ...     print(theta.detach())
        tensor([3.6000, 4.8000])
        >>> theta.detach()
        tensor([3., 4.])
    """
    excursion = Excursion(
        params,
        rho,
        sign=sign,
        eps=eps,
        adaptive=adaptive,
        rounding=rounding,
        swap=swap,
        diagnose=diagnose,
        memory={} if memory is None else memory,
    )
    try:
        try:
            yield excursion.go()
        finally:
            excursion.back()
    finally:
        excursion.back()  # an interrupt may have cut the first one short


class Excursion:
    """Theta on its way to theta + delta and back; arguments and errors are those of `perturbed`."""

    def __init__(
        self,
        params: Params,
        rho: float,
        *,
        sign: int,
        eps: float,
        adaptive: bool,
        rounding: Rounding,
        diagnose: bool,
        memory: Memory,
        swap: bool = False,
    ) -> None:
        if sign not in (1, -1):
            raise ValueError(
                f"perturbed: sign is {sign!r}; +1 climbs, -1 descends. Which did you mean?"
            )
        if rounding not in ("nearest", "stochastic"):
            raise ValueError(
                f'perturbed: rounding is {rounding!r}; it is "nearest" or "stochastic".'
            )
        self._radii = {p: sign * radius for p, radius in _radii(params, rho).items()}
        self._eps = check_radius(eps, "perturbed: eps")
        self._adaptive = adaptive
        self._rounding: Rounding = rounding
        self._swaps, self._diagnose = swap, diagnose
        self._kept: Memory = memory
        self._memory: Memory = {}
        self._moves = (Swaps if swap else Moves)(self._memory)

    @eager
    def go(self) -> Perturbation:
        """Move theta, and clear `.grad`, the direction; both are as before if that fails."""
        found = {p: p.grad for p in self._radii}
        self._memory.update(self._kept)
        self._kept.clear()  # a nested excursion must not write where this one saves
        try:
            with interrupts.held():
                gradients.clear(self._radii)
                torch.clear_autocast_cache()
                return self._moved(found)
        except BaseException:
            gradients.put(found, found.values())
            self.back()
            raise

    def _moved(self, found: Mapping[Tensor, Tensor | None]) -> Perturbation:
        plan = _Plan(self._radii, found, self._eps, self._adaptive)
        if self._swaps and plan.has_aliases:
            raise ValueError(
                "perturbed: swap=True points parameters at new memory, and some of them are the "
                "same memory, which would come apart. Did you mean swap=False?"
            )
        noise = plan.noise(self._rounding)
        pieces = self._moves.there(plan.intents, adaptive=self._adaptive, noise=noise)
        how_far = realised(pieces) if self._diagnose else None
        return Perturbation(how_far, plan.norm, plan.entries)

    @eager
    def back(self) -> None:
        """Bring theta back, bit for bit; once more does no harm."""
        with interrupts.held():
            self._moves.back()
            torch.clear_autocast_cache()
            self._kept.update(self._memory)


def check_radius(value: Any, name: str) -> float:  # noqa: ANN401
    """Convert to a finite number, at least 0, or raise a `ValueError` that names it."""
    value = number(value, name)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(
            f"{name} is {value!r}, which no ball has as its radius; theta would move the wrong way "
            "or nowhere. Did you mean a small number such as 0.05 (and `ReverseSAM` to descend)?"
        )
    return value


def _radii(params: Params, rho: float) -> dict[Tensor, float]:
    """Each parameter's radius, once per parameter however often it is listed."""
    rho = check_radius(rho, "perturbed: rho")
    radii: dict[Tensor, float] = {}
    for entry in params:
        if isinstance(entry, Tensor):
            radii.setdefault(entry, rho)
        else:
            radius = check_radius(entry.get("rho", rho), "perturbed: a group's rho")
            for p in entry["params"]:
                radii.setdefault(p, radius)
    return radii


class _Plan:
    """Where each parameter goes: `scale * direction`, with one norm over all."""

    @torch.no_grad()
    def __init__(
        self,
        radii: Mapping[Tensor, float],
        found: Mapping[Tensor, Tensor | None],
        eps: float,
        adaptive: bool,
    ) -> None:
        moving = {p: g for p, g in found.items() if g is not None and radii[p] != 0}
        aligned = _merged({p: gradients.aligned(g, p) for p, g in moving.items()})
        on_host = all(gradients.local(p).device.type in moves.BLOCKWISE for p in aligned)
        lengths = (
            [p.abs() * _wide(g) for p, g in aligned.items()] if adaptive else [*aligned.values()]
        )
        if on_host:
            self.norm, length = gradients.exact_norm(lengths)
            self.intents = _read_intents(aligned, radii, length, eps)
        else:
            self.norm = gradients.norm(lengths)
            self.intents = _intents(aligned, radii, self.norm, eps)
        self.has_aliases = len(aligned) < len(moving)
        self.entries = sum(p.numel() for p in aligned)

    def noise(self, rounding: Rounding) -> Noise | None:
        """Noise that differs from step to step and is the same on all ranks."""
        return Noise(self.norm) if rounding == "stochastic" else None


def _merged(directions: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
    """One direction per memory: parameters that are the same memory move as the one they are."""
    here = [gradients.local(p) for p in directions]
    aliases.check(here, "perturbed")
    if len(aliases.apart(here)) == len(here):
        return directions
    merged: dict[object, tuple[Tensor, Tensor]] = {}
    for (p, g), theta in zip(directions.items(), here, strict=True):
        first, total = merged.get(aliases.place(theta), (p, None))
        merged[aliases.place(theta)] = (first, g if total is None else total + g)
    return dict(merged.values())


def _wide(g: Tensor) -> Tensor:
    return g.to(torch.promote_types(g.dtype, torch.float32))


def _read_intents(
    directions: Mapping[Tensor, Tensor], radii: Mapping[Tensor, float], length: float, eps: float
) -> list[Intent]:
    """Factors rho / (||g|| + eps), or nothing at all where ||g|| is 0 or not finite."""
    if length == 0 or not math.isfinite(length):
        return []
    return [Intent(p, g, radii[p] / (length + eps)) for p, g in directions.items()]


def _intents(
    directions: Mapping[Tensor, Tensor], radii: Mapping[Tensor, float], norm: Tensor, eps: float
) -> list[Intent]:
    """The same factors, chosen on the device: the host would have to wait for it."""
    usable = norm.isfinite() & (norm != 0)
    inverse = torch.where(usable, 1 / (norm + eps), torch.zeros_like(norm))
    scales = {radius: radius * inverse for radius in {radii[p] for p in directions}}
    return [
        Intent(p, g, scales[radii[p]].to(gradients.local(g).device)) for p, g in directions.items()
    ]
