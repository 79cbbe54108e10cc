"""Read, move and combine gradients: the only code that touches `.grad`.

A *register* is a list with one entry per parameter, a gradient or `None`. Registers hold copies
wherever somebody else may write into a gradient: engines that keep theirs in buckets (DDP) or
graphs (CUDA graphs) overwrite them on the next backward pass.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Register: TypeAlias = list[Tensor | None]
Backward: TypeAlias = Callable[[Tensor], Any]

PLAIN = (Tensor, torch.nn.Parameter)
HOST = ("cpu",)  # devices whose numbers can be read without waiting for them
BLOCK = 262_144  # entries that a host sums at a time: one sum over a large tensor is less exact

# Between these a norm in float32 has squares that float32 holds to full precision.
LEAST, MOST = 1e-15, 1e18
SHARDED = "torch.distributed.tensor"


def parameters(optimizer: Optimizer) -> list[Tensor]:
    """List all parameters of an optimizer, in order, each once."""
    return [*{id(p): p for group in optimizer.param_groups for p in group["params"]}.values()]


def group_signature(*optimizers: Optimizer) -> list[tuple[Any, ...]]:
    """Collect what changes where groups are added or turned round, or tensors replaced."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return [(group.get("maximize"), *map(id, group["params"])) for group in groups]


def read(params: Iterable[Tensor]) -> Register:
    """Refer to the gradients as they are."""
    return [p.grad for p in params]


def put(params: Iterable[Tensor], register: Iterable[Tensor | None]) -> None:
    """Make the register's tensors the gradients."""
    for p, g in zip(params, register, strict=True):
        p.grad = g


def clear(params: Iterable[Tensor]) -> None:
    """Leave no gradients."""
    for p in params:
        p.grad = None


def copy_all(register: Iterable[Tensor | None]) -> Register:
    """Copy the gradients into memory of their own."""
    return [None if g is None else g.detach().clone() for g in register]


def take(params: Sequence[Tensor]) -> Register:
    """Move the gradients out; copied, one by one, where an engine may write into them again."""
    in_group, register = dist.is_available() and dist.is_initialized(), [p.grad for p in params]
    clear(params)
    for i, g in enumerate(register):
        if g is not None and (in_group or not g.is_cpu):
            register[i] = g.detach().clone()
    return register


def norm(register: Iterable[Tensor | None]) -> Tensor:
    """L2 norm over all entries jointly, other ranks' shards included: a 0-dim tensor.

    Call it, as all that computes with gradients here, where gradients are disabled.

    Accumulated in float32 or wider, in float64 on CUDA, and on the host (where that is slow) if the
    squares overflow or vanish in float32.

    Cost: one pass, one reduction per device mesh; no wait for an accelerator.
    """
    parts: list[Tensor] = []
    for group in _alike(register, _whole):
        part = _joint_norm(group, torch.float64 if group[0].is_cuda else torch.float32)
        if group[0].device.type in HOST and not LEAST < part.item() < MOST:
            part = _joint_norm(group, torch.float64)
        parts.append(part)
    if len(parts) < 2:
        return parts[0] if parts else torch.zeros((), device="cpu")
    home = next((p.device for p in parts if p.device.type not in HOST), parts[0].device)
    widest = max((p.dtype for p in parts), key=lambda dtype: torch.finfo(dtype).bits)
    parts = [p.to(home, widest, non_blocking=True) for p in parts]
    return torch.linalg.vector_norm(torch.stack(parts))


def _joint_norm(alike: list[Tensor], least: torch.dtype) -> Tensor:
    wide = torch.promote_types(alike[0].dtype, least)
    entries = [shard(t) for t in alike] if is_sharded(alike[0]) else alike
    if alike[0].device.type in HOST and max(map(Tensor.numel, entries)) > BLOCK:
        entries = [block for t in entries for block in t.reshape(-1).split(BLOCK)]
    norms = torch._foreach_norm(entries, 2, dtype=wide)
    norm = torch.linalg.vector_norm(torch.stack(norms))
    return reduce_shards(norm.square(), alike[0]).sqrt() if is_sharded(alike[0]) else norm


def _whole(g: Tensor) -> Tensor:
    """Give a dense real tensor with the same norm: what a sparse one names twice is added up."""
    if is_sharded(g) and any(p.is_partial() for p in g.placements):
        g = g.full_tensor()  # summands, of tensor parallel layers
    g = g.coalesce()._values() if g.is_sparse else g
    return torch.view_as_real(g.resolve_conj()) if g.is_complex() else g


def _alike(
    register: Iterable[Tensor | None], form: Callable[[Tensor], Tensor]
) -> Iterable[list[Tensor]]:
    """Group a register by device, dtype and distribution, in a form that is dense."""
    given = [g for g in register if g is not None]
    kinds = {(type(g), g.layout, g.dtype, g.device) for g in given}
    is_usual = len(kinds) == 1 and type(given[0]) in PLAIN and not given[0].is_complex()
    if is_usual and given[0].layout is torch.strided:
        return [given]
    groups: dict[object, list[Tensor]] = {}
    for t in map(form, given):
        spread = (t.device_mesh, t.placements) if is_sharded(t) else None
        groups.setdefault((t.device, t.dtype, spread), []).append(t)
    return groups.values()


def scale_(register: Iterable[Tensor | None], factor: float | Tensor) -> None:
    """Multiply a register in place."""
    for group in _alike(register, _entries):
        here = factor.to(group[0].device) if isinstance(factor, Tensor) else factor
        torch._foreach_mul_(group, here)


def _entries(g: Tensor) -> Tensor:
    """Refer to the entries that live here, as foreach takes them: no lazily conjugated ones."""
    g = g.to_local() if is_sharded(g) else g
    g = g._values() if g.is_sparse else g
    return g.conj() if g.is_conj() else g


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Recognise a DTensor without the half second that importing the class costs."""
    return type(tensor) not in PLAIN and hasattr(tensor, "placements")


def shard(tensor: Tensor) -> Tensor:
    """Refer to the part of a sharded tensor that lives here, and to all of any other."""
    tensor = tensor.detach()
    return tensor.to_local() if is_sharded(tensor) else tensor


def reduce_shards(part: Tensor, like: "DTensor") -> Tensor:
    """Complete a sum over the local shards of tensors distributed as `like`, over all ranks."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    there = [Replicate() if p.is_replicate() else Partial() for p in like.placements]
    mesh = like.device_mesh  # weights may be offloaded to the host, which its group does not reach
    return DTensor.from_local(part.to(mesh.device_type), mesh, there).full_tensor()


def check_weights(params: Iterable[Tensor], owner: str) -> None:
    """Raise if two lie in the same memory, or some are sharded and this torch is too old for it."""
    params = [*params]
    if any(map(is_sharded, params)) and not hasattr(import_module(SHARDED), "DTensor"):
        raise TypeError(
            f"{owner} found sharded parameters, of which it would see each rank's part. Did you "
            f"mean torch 2.5 or newer (this is {torch.__version__}), or DistributedDataParallel?"
        )
    tensors = [shard(p) for p in params]
    if len({t.untyped_storage()._cdata for t in tensors}) == len(tensors):
        return
    filled = sorted(_extent(t) for t in tensors if t.numel())
    if any(one[0] == other[0] and other[1] < one[2] for one, other in pairwise(filled)):
        raise ValueError(
            f"{owner}: two parameters lie in the same memory, which would be moved twice. Did you "
            "mean one parameter (as in `b.weight = a.weight`), or a copy (`clone()`) of it?"
        )


def _extent(tensor: Tensor) -> tuple[int, int, int]:
    """Locate a tensor: its storage, its first byte there, and the one after its last."""
    span = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin, size = int(tensor.storage_offset()), tensor.element_size()
    return tensor.untyped_storage()._cdata, begin * size, (begin + span + 1) * size
