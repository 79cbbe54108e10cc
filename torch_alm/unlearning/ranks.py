"""Processes that are one run: the rows that each takes of a batch, and what all agree on."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import TrainingArguments

from torch_alm._constraint.observations import is_distributed, sum_over_ranks
from torch_alm.unlearning.errors import Refusal, first_line
from torch_alm.unlearning.loading import Setup
from torch_alm.unlearning.model import find_card

T = TypeVar("T")
V = TypeVar("V")
PATIENCE = timedelta(hours=24)  # of ranks for one another: the first asks and saves by itself
LAST_WORDS = timedelta(minutes=1)  # that a rank which refuses has to say why


def join_group(device: str) -> None:
    """Join the processes that `torchrun` or `accelerate launch` started, if there are several."""
    if int(os.environ.get("WORLD_SIZE") or 1) == 1:
        return
    has_cards = device in ("auto", "cuda") and torch.cuda.is_available()
    here, cards = int(os.environ.get("LOCAL_WORLD_SIZE") or 1), torch.cuda.device_count()
    if has_cards and here > cards:
        raise Refusal(
            f"{here} processes were started here, and there are {cards} GPUs, so that one would "
            f"have none. Did you mean {cards} processes, or `device` cpu?"
        )
    if has_cards:
        torch.cuda.set_device(find_card())
    if not dist.is_initialized():
        dist.init_process_group("nccl" if has_cards else "gloo", timeout=PATIENCE)


def wait_for_all(longest: timedelta) -> None:
    """Wait until all ranks are at their end: a launcher ends the others once one is gone."""
    with suppress(KeyError, RuntimeError, ValueError):  # no store, or one that ended with its rank
        if dist.is_initialized():
            store = dist.distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]
        else:
            store = next(dist.rendezvous("env://", timeout=longest))[0]
        ends = [f"torch_alm: end of {rank}" for rank in range(int(os.environ["WORLD_SIZE"]))]
        store.set(ends[int(os.environ["RANK"])], "")
        store.wait(ends, longest)


def count_ranks() -> int:
    """Return the number of processes of the run."""
    return dist.get_world_size() if is_distributed() else 1


def is_first() -> bool:
    """Return whether this process is the one that writes and speaks, or the only one."""
    return not is_distributed() or dist.get_rank() == 0


def check_group() -> None:
    """Raise `Refusal` for processes that the Trainer would not see: each would train by itself."""
    if not is_distributed():
        return
    for engine in ("FSDP", "DEEPSPEED"):
        if os.environ.get(f"ACCELERATE_USE_{engine}", "false").lower() == "true":
            raise Refusal(
                f"the processes were started for {engine}, and here each holds the whole model. "
                "Did you mean `lora`, which trains less of it, or SAULTrainer with `fsdp_config`?"
            )
    seen = TrainingArguments("", use_cpu=dist.get_backend() != "nccl").world_size
    if seen != count_ranks():
        raise Refusal(
            f"the process group has {count_ranks()} processes, and the Trainer sees {seen} of "
            "them. Were they started by torchrun or `accelerate launch`, which set RANK, "
            "LOCAL_RANK and WORLD_SIZE?"
        )


def check_shared(settings: Mapping[str, Any], loaded: Setup) -> None:
    """Raise `Refusal` for ranks that differ in rows, options or weights, or outnumber a batch."""
    rows = min(loaded.given.batch_size, len(loaded.sets["forget"]))
    for each in gather(settings):
        if different := [k for k in settings if settings[k] != each.get(k)]:
            raise Refusal(
                f"the processes differ in {', '.join(different)}; each would pull its own way. "
                "Were they given the same files and options?"
            )
    if count_ranks() > rows:
        raise Refusal(
            f"{count_ranks()} processes share a batch of {rows} rows, so that some would have "
            "none. Did you mean fewer processes, or a larger `batch_size`?"
        )


def gather(value: T) -> list[T]:
    """Return the value of every rank, in their order."""
    found: list[Any] = [None] * count_ranks()
    if not is_distributed():
        return [value]
    dist.all_gather_object(found, value)
    return found


def share(value: T) -> T:
    """Return the value of the first rank, on every rank."""
    found: list[Any] = [value]
    if is_distributed():
        dist.broadcast_object_list(found)
    return cast(T, found[0])


@contextmanager
def agree() -> Iterator[None]:
    """Let all ranks raise what one of them raises in the context, where they do not communicate."""
    told = ""
    try:
        yield
    except BaseException as error:
        told = first_line(error)
        raise
    finally:
        failed = [each for each in gather(told) if each]
        if failed and not told:
            raise Refusal(failed[0])


def spread(loaded: Setup, read: Callable[[list[T]], list[V]], rows: Sequence[T]) -> list[V]:
    """Read rows; where ranks divide them, each its share, and all return the values of all."""
    if not (loaded.is_divided and is_distributed()):
        return read([*rows])
    ranks, own = count_ranks(), list[V]()
    with agree():
        mine = [*rows[dist.get_rank() :: ranks]]
        own = read(mine) if mine else []
    every = gather(own)
    return [every[i % ranks][i // ranks] for i in range(len(rows))]


def run_on_first(action: Callable[[], T]) -> T:
    """Return to all ranks what an action returns on the first; all raise what it raises."""
    found = None
    with agree():
        if is_first():
            found = action()
    return cast(T, share(found))


def divide(batch: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], float]:
    """Return the rows of this rank in a batch, and the weight of their mean in the mean over ranks.

    A rank without any takes the first, for nothing: all ranks have to pass through the model.
    """
    if not is_distributed():
        return {**batch}, 1.0
    every, ranks = len(batch["labels"]), count_ranks()
    own = [*range(dist.get_rank(), every, ranks)]
    return {k: v[own or [0]] for k, v in batch.items()}, len(own) * ranks / every


def add_up(*values: Tensor) -> Tensor:
    """Return the sum of each number over ranks, in float64 if one is."""
    found = torch.stack([*values])
    return sum_over_ranks(found) if is_distributed() else found.detach()
