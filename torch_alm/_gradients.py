"""Read, move and combine gradients: the only code that touches `.grad`.

A *register* is a list with one entry per parameter, a gradient or `None`. Registers hold copies
wherever somebody else may write into a gradient: engines that keep theirs in buckets (DDP) or
graphs (CUDA graphs) overwrite them on the next backward pass.
"""

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor

from torch_alm import _aliases as aliases

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Register: TypeAlias = list[Tensor | None]
Backward: TypeAlias = Callable[[Tensor], Any]

# Between these a norm in float32 has squares that float32 holds to full precision.
SQUARES = (1e-15, 1e18)


class Evaluation(NamedTuple):
    """One run of an objective: the loss to differentiate and the value a constraint sees."""

    loss: Tensor
    value: Tensor
    paired: bool

    def detached(self) -> "Evaluation":
        """The same numbers without their graph."""
        return Evaluation(self.loss.detach(), self.value.detach(), self.paired)


def read(params: Iterable[Tensor]) -> Register:
    """The gradients as they are: references, to look at or to put back."""
    return [p.grad for p in params]


def empty(params: Iterable[Tensor]) -> Register:
    """A register with no gradients yet."""
    return [None for _ in params]


def clear(params: Iterable[Tensor]) -> None:
    """Set every `.grad` to `None`."""
    for p in params:
        p.grad = None


def put(params: Iterable[Tensor], register: Iterable[Tensor | None]) -> None:
    """Make the register's tensors the gradients."""
    for p, g in zip(params, register, strict=True):
        p.grad = g


def copies(register: Iterable[Tensor | None]) -> Register:
    """The same gradients in memory of their own."""
    return [None if g is None else g.detach().clone() for g in register]


def take(params: Sequence[Tensor]) -> Register:
    """Move the gradients out one by one: where copies are needed, only one is held twice.

    If that fails on the way, or is interrupted, all of them are back.
    """
    register: Register = []
    try:
        for p in params:
            g = p.grad
            register.append(g if g is None or _is_ours_alone(g) else g.detach().clone())
            p.grad = None
        return register
    except BaseException:
        put(params[: len(register)], register)
        raise


def _is_ours_alone(gradient: Tensor) -> bool:
    """Whether no engine keeps this memory: DDP's buckets need ranks, CUDA graphs need a device."""
    in_group = dist.is_available() and dist.is_initialized()
    return gradient.device.type == "cpu" and not in_group


def present(register: Iterable[Tensor | None]) -> list[Tensor]:
    """Leave out what is `None`."""
    return [g for g in register if g is not None]


def scale_(register: Iterable[Tensor | None], factor: float | Tensor) -> None:
    """Multiply a register in place."""
    for call in scaling(register, factor):
        call()


def scaling(
    register: Iterable[Tensor | None], factor: float | Tensor
) -> list[Callable[[], object]]:
    """Multiply a register in place, as calls of which each is to be made once."""
    stored = aliases.apart([_values(local(g)) for g in present(register)])
    return [partial(_multiply, tensors, factor) for tensors in _alike(stored)]


@torch.no_grad()
def _multiply(tensors: list[Tensor], factor: float | Tensor) -> None:
    here = factor.to(tensors[0].device) if isinstance(factor, Tensor) else factor
    torch._foreach_mul_(tensors, here)  # pyright: ignore[reportPrivateUsage]


def _values(gradient: Tensor) -> Tensor:
    """The numbers that a gradient stores, or their conjugates, sharing its memory."""
    values = gradient._values() if gradient.is_sparse else gradient
    return values.conj() if values.is_conj() else values  # foreach functions refuse lazy ones


def _entries(gradient: Tensor) -> Tensor:
    """A dense real tensor with the same L2 norm: what a sparse one names twice is added up."""
    whole = _summed(gradient)
    entries = _values(whole.coalesce() if whole.is_sparse else whole)
    return torch.view_as_real(entries) if entries.is_complex() else entries


def local(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that lives here, sharing its memory; others as they are."""
    tensor = tensor.detach()
    return tensor.to_local() if is_sharded(tensor) else tensor


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether this is a DTensor, asked without the half second that importing the class costs."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


@torch.no_grad()
def norm(register: Iterable[Tensor | None], least: torch.dtype = torch.float32) -> Tensor:
    """L2 norm over all entries jointly, shards of other ranks included: a 0-dim tensor.

    Accumulated in float32 or wider (`promote_types(dtype, float32)`): half-precision norms
    overflow above 65504 and vanish below 6e-8. On CUDA in float64, where squares neither overflow
    nor vanish; for CPUs, where that costs thirty times as much, see `exact_norm`.

    Cost: one pass over the gradients, one reduction per device mesh, no device synchronisation.
    """
    parts: list[Tensor] = []
    for alike in _alike(map(_entries, present(register))):
        on_cuda = alike[0].device.type == "cuda"
        wide = torch.promote_types(alike[0].dtype, torch.float64 if on_cuda else least)
        shards = [local(t) for t in alike]
        norms = torch._foreach_norm(shards, 2, dtype=wide)  # pyright: ignore[reportPrivateUsage]
        square = torch.linalg.vector_norm(torch.stack(list(norms))).square()
        parts.append(over_shards(square, alike[0]).sqrt())
    if not parts:
        return torch.zeros(())
    home = parts[0].device
    widest = max((p.dtype for p in parts), key=lambda dtype: torch.finfo(dtype).bits)
    return torch.linalg.vector_norm(torch.stack([p.to(home, widest) for p in parts]))


def exact_norm(register: Sequence[Tensor | None]) -> tuple[Tensor, float]:
    """`norm`, in float64 if squares overflow or vanish in float32, and its value.

    Cost: one synchronisation, two in the rare case.
    """
    found = norm(register)
    least, most = SQUARES
    if not least < (length := found.item()) < most:
        found = norm(register, torch.float64)
        length = found.item()
    return found, length


@torch.no_grad()
def largest(register: Iterable[Tensor | None]) -> float:
    """The largest absolute entry, those of other ranks included; one synchronisation.

    `nan` if there is one, in any of them.
    """
    found = [0.0]
    for alike in _alike([_entries(g) for g in present(register)]):
        tops = [local(t).abs().amax() for t in alike if local(t).numel()]
        top = torch.stack(tops).amax() if tops else alike[0].new_zeros(())
        found.append(over_shards(top, alike[0], "max").item())
    return torch.tensor(found, dtype=torch.float64).amax().item()


def stays_finite(register: Sequence[Tensor | None], norm: float, factor: float) -> bool:
    """Whether every entry, times the factor, is a number that its dtype holds.

    Cost: none where the norm tells; else a pass over the gradients and a synchronisation.
    """
    limit = min((torch.finfo(g.dtype).max for g in present(register)), default=math.inf)
    if not math.isfinite(norm * factor):
        return False
    return norm * abs(factor) <= limit or largest(register) * abs(factor) <= limit


def over_shards(part: Tensor, like: Tensor, reduce: str = "sum") -> Tensor:
    """A sum over the local shards of tensors distributed as `like`, completed over all ranks."""
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor, Partial, Replicate

    mesh = like.device_mesh
    there = [Replicate() if p.is_replicate() else Partial(reduce) for p in like.placements]
    # Weights may be offloaded to the host, where a device's process group does not reach them.
    return DTensor.from_local(part.to(mesh.device_type), mesh, there).full_tensor()


def aligned(gradient: Tensor, p: Tensor) -> Tensor:
    """The gradient distributed as its parameter is: tensor parallel ones may still be summands."""
    if not (is_sharded(gradient) and is_sharded(p)) or gradient.placements == p.placements:
        return gradient
    return gradient.redistribute(p.device_mesh, p.placements)


def _summed(gradient: Tensor) -> Tensor:
    """The same gradient without summands that other ranks hold."""
    if not is_sharded(gradient) or not any(p.is_partial() for p in gradient.placements):
        return gradient
    from torch.distributed.tensor import Replicate

    whole = [Replicate() if p.is_partial() else p for p in gradient.placements]
    return gradient.redistribute(gradient.device_mesh, whole)


def _alike(tensors: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    """Group tensors that one foreach call can take: same device, dtype and distribution."""
    groups: dict[object, list[Tensor]] = {}
    for t in tensors:
        groups.setdefault(kind(t), []).append(t)
    return groups.values()


def kind(tensor: Tensor) -> object:
    """Device, dtype and distribution, the same for tensors that can be handled together."""
    spread = (tensor.device_mesh, tensor.placements) if is_sharded(tensor) else None
    return (tensor.device, tensor.dtype, spread)


def differentiate(loss: Tensor, weight: float, backward: Backward) -> None:
    """`.grad += weight * d loss / d theta`, the loss itself reaching `backward` unscaled.

    The weight enters as a hook on the loss, so that `backward` (an engine's, perhaps) owns every
    other scaling.
    """
    if weight == 1.0:
        backward(loss)
        return
    handle = loss.register_hook(lambda gradient: gradient * weight)
    try:
        backward(loss)
    finally:
        handle.remove()


def check_arrived(params: Iterable[Tensor], owner: str) -> None:
    """Raise if a backward pass left sharded parameters without any gradient.

    FSDP2 keeps unreduced gradients to itself while gradient sync is off, those of retain and forget
    and of both passes of SAM in one sum.
    """
    sharded = [p for p in params if is_sharded(p) and p.requires_grad]
    if sharded and all(p.grad is None for p in sharded):
        raise RuntimeError(
            f"{owner}: the backward pass left no gradient on {len(sharded)} sharded parameters; "
            "FSDP2 would have added up what belongs apart. Is gradient sync off? Every micro-batch "
            "needs it: `model.set_requires_gradient_sync(True)`, or under accelerate "
            "`GradientAccumulationPlugin(sync_each_batch=True)`."
        )


@torch.no_grad()
def coming_norm(register: Sequence[Tensor | None]) -> Callable[[], float]:
    """The norm for later: an accelerator sends it while the host goes on, a CPU waits to be asked.

    Read it after something else has waited for the device, and it costs no waiting of its own.
    """
    if not any(g.is_cuda for g in present(register)) or not torch.cuda.is_available():
        return lambda: exact_norm(register)[1]
    number = norm(register)
    copied, arrived = number.to("cpu", non_blocking=True), torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(number.device))

    def value() -> float:
        arrived.synchronize()
        return copied.item()

    return value


def clip_(register: Sequence[Tensor | None], max_norm: float) -> Tensor:
    """Scale a register down to a norm of `max_norm`; returns the norm before. See `norm`."""
    if any(g.device.type != "cpu" for g in present(register)):
        before = norm(register)
        scale_(register, (max_norm / (before + 1e-6)).clamp(max=1.0))  # costs less than asking
        return before
    before, length = exact_norm(register)
    if (factor := max_norm / (length + 1e-6)) < 1:
        scale_(register, factor)
    return before
