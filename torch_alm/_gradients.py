"""Read, move and combine gradients: the only code that touches `.grad`.

A *register* is a list with one entry per parameter, a gradient or `None`. Registers hold copies,
never references: engines that keep gradients in buckets (DDP) or graphs (CUDA graphs) overwrite
theirs on the next backward pass.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeGuard

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Register: TypeAlias = list[Tensor | None]
Backward: TypeAlias = Callable[[Tensor], Any]


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
    """Copy the gradients out and clear them, one by one: no more than one is held twice."""
    register: Register = []
    for p in params:
        register.append(None if p.grad is None else p.grad.detach().clone())
        p.grad = None
    return register


def present(register: Iterable[Tensor | None]) -> list[Tensor]:
    """The entries that are not `None`."""
    return [g for g in register if g is not None]


@torch.no_grad()
def scale_(register: Iterable[Tensor | None], factor: float) -> None:
    """Multiply a register in place."""
    tensors = [local(g) for g in present(register)]
    if tensors:
        torch._foreach_mul_(tensors, factor)  # pyright: ignore[reportPrivateUsage]


def local(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that lives here, sharing its memory; others as they are."""
    tensor = tensor.detach()
    return tensor.to_local() if is_sharded(tensor) else tensor


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether this is a DTensor, asked without the half second that importing the class costs."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


@torch.no_grad()
def norm(register: Iterable[Tensor | None]) -> Tensor:
    """L2 norm over all entries jointly, shards of other ranks included: a 0-dim tensor.

    Accumulated in float32 or wider (`promote_types(dtype, float32)`): half-precision norms
    overflow above 65504 and vanish below 6e-8. Cost: one pass over the gradients.
    """
    parts: list[Tensor] = []
    for tensors in _alike(present(register)):
        wide = torch.promote_types(tensors[0].dtype, torch.float32)
        norms = torch._foreach_norm(tensors, 2, dtype=wide)  # pyright: ignore[reportPrivateUsage]
        total = torch.linalg.vector_norm(torch.stack(list(norms)))
        parts.append(total.full_tensor() if is_sharded(total) else total)
    if not parts:
        return torch.zeros(())
    home = parts[0].device
    wide = max((p.dtype for p in parts), key=lambda dtype: torch.finfo(dtype).bits)
    return torch.linalg.vector_norm(torch.stack([p.to(home, wide) for p in parts]))


def _alike(tensors: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    """Group tensors that one foreach call can take: same device, dtype and device mesh."""
    groups: dict[object, list[Tensor]] = {}
    for t in map(_real, tensors):
        mesh = t.device_mesh if is_sharded(t) else None
        groups.setdefault((t.device, t.dtype, mesh), []).append(t)
    return groups.values()


def _real(gradient: Tensor) -> Tensor:
    """A dense real tensor with the same L2 norm."""
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    return torch.view_as_real(gradient) if gradient.is_complex() else gradient


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
