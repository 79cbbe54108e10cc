"""One benchmark run by several processes (`torchrun`): each takes its share of every batch.

All ranks draw the same batches and take the same steps; the first one alone evaluates and writes. A
batch is split by rows, so gradients are those of one process if its rows can be shared out evenly
and the loss is a mean over rows (PDU's is one over tokens); constraints agree by themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.methods.rmu import TopicBatch

T = TypeVar("T")
LOSSES = ("forget_loss", "retain_loss")
PATIENCE = timedelta(hours=12)
"""The time that others wait while the first rank trains a model or generates answers."""


@contextmanager
def joined() -> Iterator[None]:
    """Join the other processes that `torchrun` started, if there are any, and leave at the end."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend, timeout=PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def is_first() -> bool:
    """Tell whether this is the process that evaluates and writes."""
    return not dist.is_initialized() or dist.get_rank() == 0


def from_first(make: Callable[[], T]) -> T:
    """Call `make` on the first rank, and return on all of them what it returned."""
    if world() == 1:
        return make()
    box = [make() if is_first() else None]
    dist.broadcast_object_list(box)
    return box[0]  # pyright: ignore[reportReturnType]


@contextmanager
def first_goes_first() -> Iterator[None]:
    """Inside, the first rank finishes before the others begin: they find what it has cached."""
    if world() > 1 and not is_first():
        dist.barrier()
    yield
    if world() > 1 and is_first():
        dist.barrier()


def share(batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Take this rank's rows of a batch; one with fewer rows than ranks gives some of them twice."""
    if world() == 1:
        return batch
    rows = len(next(iter(batch.values())))
    mine = range(dist.get_rank(), max(rows, world()), world())
    index = torch.tensor([i % rows for i in mine])
    found = {name: tensor[index.to(tensor.device)] for name, tensor in batch.items()}
    return TopicBatch(found, batch.topic) if isinstance(batch, TopicBatch) else found


def average_gradients(model: nn.Module) -> None:
    """Make each gradient the mean over ranks as it arrives, whoever asks for it."""
    if world() == 1:
        return
    for p in model.parameters():
        if p.requires_grad:
            p.register_hook(_mean_over_ranks)


def averaged(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """A step's numbers, with the losses of this rank's rows replaced by their means over ranks."""
    named = [name for name in LOSSES if name in numbers]
    if world() == 1 or not named:
        return dict(numbers)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sums = torch.tensor([numbers[name] for name in named], dtype=torch.float64, device=device)
    dist.all_reduce(sums)
    return {**numbers, **dict(zip(named, (sums / world()).tolist(), strict=True))}


def _mean_over_ranks(gradient: Tensor) -> Tensor:
    mean = gradient.contiguous() / world()
    dist.all_reduce(mean)
    return mean
