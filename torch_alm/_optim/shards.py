"""Tensors of which each rank has a part: the only code that reduces over them."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

# Where the class lies: before 2.5 in a private place, and with no engine that was tested here.
IS_PUBLIC = torch.__version__ >= "2.5"  # compared as versions are
MODULE = "torch.distributed.tensor" if IS_PUBLIC else "torch.distributed._tensor"


def reduced(part: Tensor, like: "DTensor", reduce: str = "sum") -> Tensor:
    """Complete a sum over the local shards of tensors distributed as `like`, over all ranks."""
    if not IS_PUBLIC:
        raise NotImplementedError(
            f"torch_alm found a sharded parameter under torch {torch.__version__}; sharding is "
            "tested from torch 2.8 on. Did you mean a newer torch, or DDP?"
        )
    from torch.distributed.tensor import DTensor, Partial, Replicate

    mesh = like.device_mesh
    there = [Replicate() if p.is_replicate() else Partial(reduce) for p in like.placements]
    # Weights may be offloaded to the host, where a device's process group does not reach them.
    return DTensor.from_local(part.to(mesh.device_type), mesh, there).full_tensor()


def summed(gradient: "DTensor") -> "DTensor":
    """Add up the summands that other ranks hold."""
    if not any(p.is_partial() for p in gradient.placements):
        return gradient
    from torch.distributed.tensor import Replicate

    whole = [Replicate() if p.is_partial() else p for p in gradient.placements]
    return gradient.redistribute(gradient.device_mesh, whole)


def aligned(gradient: "DTensor", p: "DTensor") -> "DTensor":
    """Distribute a gradient as its parameter is: tensor parallel ones may still be summands."""
    if gradient.placements == p.placements:
        return gradient
    return gradient.redistribute(p.device_mesh, p.placements)
