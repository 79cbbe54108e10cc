"""Read, move and combine gradients: the only code that touches `.grad`.

A *register* is a list with one entry per parameter, a gradient or `None`. Registers hold copies
wherever somebody else may write into a gradient: engines that keep theirs in buckets (DDP) or
graphs (CUDA graphs) overwrite them on the next backward pass. One that is kept until the next call
is a dictionary: parameters that are added meanwhile have nothing in it.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from torch_alm._optim import aliases, shards

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

T = TypeVar("T")
Register: TypeAlias = list[Tensor | None]
Kept: TypeAlias = dict[Tensor, Tensor | None]
Backward: TypeAlias = Callable[[Tensor], Any]

# Devices whose numbers can be read without waiting for them.
HOST = ("cpu",)

# Entries that a host sums at a time: one sum over all of a large tensor is less exact.
BLOCK = 262_144

# Entries that a host moves or converts at a time. Fresh memory for a copy of the whole of a large
# tensor costs several times the copying; a processor reads ahead in long runs only, and reads a
# quarter of this many at half the speed.
RUN = 4 * BLOCK

GLIMPSE = 64  # entries, to tell at little cost that a tensor changed

# Between these a norm in float32 has squares that float32 holds to full precision.
LEAST, MOST = 1e-15, 1e18


def parameters(optimizer: Optimizer) -> list[Tensor]:
    """List all parameters of an optimizer, in order, each once."""
    return list(dict.fromkeys(p for group in optimizer.param_groups for p in group["params"]))


def read(params: Iterable[Tensor]) -> Register:
    """Refer to the gradients as they are, to look at or to put back."""
    return [p.grad for p in params]


def put(params: Iterable[Tensor], register: Iterable[Tensor | None]) -> None:
    """Make the register's tensors the gradients."""
    for p, g in zip(params, register, strict=True):
        p.grad = g


def copies(register: Iterable[Tensor | None]) -> Register:
    """Copy the gradients into memory of their own."""
    return [None if g is None else g.detach().clone() for g in register]


def kept(params: Sequence[Tensor]) -> Kept:
    """Copy the gradients, each with its parameter, for longer than a pass."""
    return dict(zip(params, copies(read(params)), strict=True))


def take(params: Sequence[Tensor]) -> Register:
    """Move the gradients out one by one: where copies are needed, only one is held twice.

    If that fails on the way, or is interrupted, all of them are back.
    """
    register: Register = []
    # DDP's buckets need ranks, CUDA graphs need a device.
    in_group = dist.is_available() and dist.is_initialized()
    try:
        for p in params:
            g = p.grad
            if g is not None and (in_group or g.device.type != "cpu"):
                g = g.detach().clone()
            register.append(g)
            p.grad = None
        return register
    except BaseException:
        put(params[: len(register)], register)
        raise


def local(tensor: Tensor) -> Tensor:
    """Refer to the part of a sharded tensor that lives here, and to all of any other."""
    tensor = tensor.detach()
    return tensor.to_local() if is_sharded(tensor) else tensor


def some(tensor: Tensor, count: int = GLIMPSE) -> Tensor:
    """Copy about that many entries, evenly spread: enough to see whether and how it changed."""
    entries = tensor.reshape(-1)
    return entries[:: max(entries.numel() // count, 1)].clone()


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Recognise a DTensor without the half second that importing the class costs."""
    module = sys.modules.get(shards.MODULE)
    return module is not None and isinstance(tensor, module.DTensor)


def share_memory(tensors: Sequence[Tensor]) -> bool:
    """Tell cheaply what is true of few models: that some of the tensors may lie in one place."""
    storages = {t.untyped_storage()._cdata for t in tensors}  # pyright: ignore[reportPrivateUsage]
    return len(storages) < len(tensors)


def alike(items: Iterable[T], of: Callable[[T], Tensor]) -> list[list[T]]:
    """Group what can be handled together: tensors of one device, dtype and distribution."""
    groups: dict[object, list[T]] = {}
    for item in items:
        t = of(item)
        spread = (t.device_mesh, t.placements) if is_sharded(t) else None
        groups.setdefault((t.device, t.dtype, spread), []).append(item)
    return [*groups.values()]


def differentiate(
    loss: Tensor, weight: float, backward: Backward, params: Iterable[Tensor], owner: str
) -> float | Tensor:
    """`.grad += weight * d loss / d theta`, the loss itself reaching `backward` unscaled.

    Returns what the gradient was multiplied by: `backward` may divide the loss, as accelerate's.

    The weight enters as a hook on the loss, so that `backward` (an engine's, perhaps) owns every
    other scaling.

    Raises:
        RuntimeError: if sharded parameters are left without any gradient, or theta has moved.
    """
    is_plain = backward is Tensor.backward
    times: list[Tensor] = []

    def weighted(gradient: Tensor) -> Tensor:
        times.append(gradient.detach())
        return gradient if weight == 1.0 else gradient * weight

    handle = None if weight == 1.0 and is_plain else loss.register_hook(weighted)
    params = [p for p in params if p.requires_grad]
    before = [p._version for p in params]
    try:
        backward(loss)
    finally:
        if handle is not None:
            handle.remove()
    sharded = [p for p in params if is_sharded(p)]
    moved = [p for p, v in zip(params, before, strict=True) if p._version != v]
    if len(moved) > sum(map(is_sharded, moved)):
        raise RuntimeError(
            f"{owner}: the backward pass has moved {len(moved)} parameters, so what follows would "
            "be about other weights. Is an optimizer's step fused into it (a hook on the "
            "parameters)? Leave the step to the optimizer given here."
        )
    if sharded and all(p.grad is None for p in sharded):
        # FSDP2 keeps unreduced gradients to itself while gradient sync is off, those of retain
        # and forget and of both passes of SAM in one sum.
        raise RuntimeError(
            f"{owner}: the backward pass left no gradient on {len(sharded)} sharded parameters; "
            "FSDP2 would have added up what belongs apart. Is gradient sync off? Every micro-batch "
            "needs it: `model.set_requires_gradient_sync(True)`, or under accelerate "
            "`GradientAccumulationPlugin(sync_each_batch=True)`."
        )
    return weight if is_plain or not times else times[-1] * weight


@torch.no_grad()
def norm(register: Iterable[Tensor | None]) -> Tensor:
    """L2 norm over all entries jointly, shards of other ranks included: a 0-dim tensor.

    Accumulated in float32 or wider (`promote_types(dtype, float32)`): half-precision norms
    overflow above 65504 and vanish below 6e-8. In float64 on CUDA, and on the host, where that
    costs thirty times as much, if the squares overflow or vanish in float32.

    Cost: one pass over the gradients, one reduction per device mesh, no device synchronisation.
    """
    parts: list[Tensor] = []
    for group in alike(_entries(register), lambda t: t):
        part = _joint_norm(group, torch.float64 if group[0].is_cuda else torch.float32)
        if group[0].device.type in HOST and not LEAST < part.item() < MOST:
            part = _joint_norm(group, torch.float64)
        parts.append(part)
    if not parts:
        return torch.zeros(())
    away = (p.device for p in parts if p.device.type not in HOST)  # for which nobody has to wait
    home = next(away, parts[0].device)
    widest = max((p.dtype for p in parts), key=lambda dtype: torch.finfo(dtype).bits)
    parts = [p.to(home, widest, non_blocking=True) for p in parts]
    return torch.linalg.vector_norm(torch.stack(parts))


def _joint_norm(alike: Sequence[Tensor], least: torch.dtype) -> Tensor:
    wide = torch.promote_types(alike[0].dtype, least)
    entries = [local(t) for t in alike]
    on_host = alike[0].device.type in HOST
    if on_host and wide != alike[0].dtype:
        norms = [*_converted_norms(entries, wide)]
    else:
        if on_host:
            entries = [block for t in entries for block in t.reshape(-1).split(BLOCK)]
        norms = torch._foreach_norm(entries, 2, dtype=wide)  # pyright: ignore[reportPrivateUsage]
    square = torch.linalg.vector_norm(torch.stack(list(norms))).square()
    return (shards.reduced(square, alike[0]) if is_sharded(alike[0]) else square).sqrt()


def _converted_norms(tensors: Sequence[Tensor], wide: torch.dtype) -> Iterator[Tensor]:
    """Give the norms of blocks of the tensors, in a wider type."""
    longest = min(RUN, max(t.numel() for t in tensors))
    room = torch.empty(longest, dtype=wide, device=tensors[0].device)
    for tensor in tensors:
        for run in tensor.reshape(-1).split(RUN):
            yield from map(torch.linalg.vector_norm, room[: run.numel()].copy_(run).split(BLOCK))


def _entries(register: Iterable[Tensor | None]) -> Iterator[Tensor]:
    """Give dense real tensors with the same L2 norms: what a sparse one names twice is added up."""
    for g in register:
        if g is None:
            continue
        whole = shards.summed(g) if is_sharded(g) else g
        entries = whole.coalesce()._values() if whole.is_sparse else whole
        entries = entries.conj() if entries.is_conj() else entries
        yield torch.view_as_real(entries) if entries.is_complex() else entries


@torch.no_grad()
def coming_norm(register: Sequence[Tensor | None]) -> Callable[[], float]:
    """Send the norm ahead on an accelerator while the host goes on; a CPU waits to be asked.

    Read it after something else has waited for the device, and it costs no waiting of its own.
    """
    on_cuda = any(g.is_cuda for g in register if g is not None)
    if not on_cuda or not torch.cuda.is_available():
        return lambda: norm(register).item()
    number = norm(register)
    copied, arrived = number.to("cpu", non_blocking=True), torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(number.device))

    def value() -> float:
        arrived.synchronize()
        return copied.item()

    return value


def stays_finite(register: Sequence[Tensor | None], norm: float, factor: float) -> bool:
    """Tell whether every entry, times the factor, is a number that its dtype holds.

    Cost: none where the norm tells; else a pass over the gradients and a synchronisation.
    """
    dtypes = {g.dtype for g in register if g is not None}
    limit = min((torch.finfo(dtype).max for dtype in dtypes), default=math.inf)
    if not math.isfinite(norm * factor):
        return False
    return norm * abs(factor) <= limit or _largest(register) * abs(factor) <= limit


@torch.no_grad()
def _largest(register: Iterable[Tensor | None]) -> float:
    """Find the largest absolute entry over all ranks, or `nan`; one synchronisation."""
    found = [0.0]
    for group in alike(_entries(register), lambda t: t):
        tops = [local(t).abs().amax() for t in group if local(t).numel()]
        like, top = group[0], torch.stack(tops).amax() if tops else group[0].new_zeros(())
        found.append((shards.reduced(top, like, "max") if is_sharded(like) else top).item())
    return torch.tensor(found, dtype=torch.float64).amax().item()


def scaling(
    register: Iterable[Tensor | None], factor: float | Tensor
) -> list[Callable[[], object]]:
    """Multiply a register in place, as calls of which each is to be made once."""
    values = [local(g) for g in register if g is not None]
    values = [g._values() if g.is_sparse else g for g in values]
    values = [v.conj() if v.is_conj() else v for v in values]  # foreach refuses lazy ones
    stored = aliases.apart(values) if share_memory(values) else values
    multiply: Any = torch._foreach_mul_  # pyright: ignore[reportPrivateUsage]
    calls: list[Callable[[], object]] = []
    for group in alike(stored, lambda t: t):
        here = factor.to(group[0].device) if isinstance(factor, Tensor) else factor
        calls.append(partial(multiply, group, here))
    return calls


@torch.no_grad()
def clip_(register: Sequence[Tensor | None], max_norm: float) -> Tensor:
    """Scale a register down to a norm of `max_norm`; returns the norm before. See `norm`."""
    before, calls = norm(register), list[Callable[[], object]]()
    if any(g.device.type not in HOST for g in register if g is not None):
        calls = scaling(register, (max_norm / (before + 1e-6)).clamp(max=1.0))  # never waits
    elif (factor := max_norm / (before.item() + 1e-6)) < 1:
        calls = scaling(register, factor)
    for call in calls:
        call()
    return before
