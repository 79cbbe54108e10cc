"""Section 11: two ranks, each with a card of its own, are one process with both batches."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.studies.accelerator import problem
from benchmarks.studies.accelerator.checks import (
    START,
    Absent,
    Check,
    Place,
    Seen,
    check,
    check_close,
    check_equal,
)

WORLD = 2
PATIENCE = 180.0  # seconds until ranks that do not answer are given up
Outcome = tuple[list[Tensor], list[float]]
ENGINES = {"DDP": "ddp", "FSDP2": "fsdp", "FSDP2 with weights on the host": "fsdp-offload"}


def checks(_: Place) -> list[Check]:
    """NCCL on two cards; gloo where the study runs on a CPU."""
    return [Check(f"SAUL on two ranks is SAUL on one: {', '.join(ENGINES)}", together)]


def together(place: Place) -> Seen:
    """Ranks agree bit for bit, and with one process to rounding."""
    if place.is_cuda and torch.cuda.device_count() < WORLD:
        raise Absent(f"two cards are needed, and {torch.cuda.device_count()} is here")
    return compared(spawned(place, [*ENGINES.values()]))


def compared(answers: list[list[Outcome]]) -> Seen:
    """The largest difference from one process for each engine; `answers` are by rank."""
    alone = trained(Place(torch.device("cpu")), "alone", slice(None))
    check(0 in alone[1] and max(alone[1]) > 0, "the gate must close and open in this check")
    seen: Seen = {}
    for engine, (first, second) in zip(ENGINES, zip(*answers, strict=True), strict=True):
        check(first[1] == second[1], f"{engine}: the ranks' lambda+ differ")
        check_equal(first[0], second[0], f"{engine}: rank against rank")
        check_close([torch.tensor(first[1])], [torch.tensor(alone[1])], 1e-6)
        seen[engine] = check_close(first[0], alone[0], 1e-11)["difference"]
    return seen


def spawned(place: Place, engines: list[str]) -> list[list[Outcome]]:
    """By rank, what each engine comes to.

    Raises:
        TimeoutError: a rank does not answer.
        torch.multiprocessing.ProcessException: with the traceback of a rank that failed, or died.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = place.device.type, folder, engines
        running = mp.start_processes(_ranked, arguments, WORLD, join=False, start_method=START)
        deadline = time.monotonic() + PATIENCE
        try:
            while not running.join(max(deadline - time.monotonic(), 0.0)):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no answer within {PATIENCE:g} seconds")
        finally:
            for process in running.processes:
                process.kill()
        return [torch.load(Path(folder, str(rank)), weights_only=True) for rank in range(WORLD)]


def _ranked(rank: int, kind: str, folder: str, engines: list[str]) -> None:
    """Leave what each engine comes to in a file named by the rank."""
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if kind == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    store = f"file://{folder}/store"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=WORLD)
    try:
        share = slice(rank * 4, rank * 4 + 4)
        found = [trained(Place(device), engine, share) for engine in engines]
        torch.save(found, Path(folder, str(rank)))
    finally:
        dist.destroy_process_group()


def wrapped(net: nn.Sequential, place: Place, engine: str) -> nn.Module:
    if engine == "alone":
        return net
    if engine == "ddp":
        return DistributedDataParallel(net)
    mesh = init_device_mesh(place.device.type, (WORLD,))
    policy: dict[str, Any] = {}
    if engine == "fsdp-offload":
        policy["offload_policy"] = CPUOffloadPolicy(pin_memory=place.is_cuda)
    for module in (net[0], net):
        fully_shard(module, mesh=mesh, **policy)
    return net


def trained(place: Place, engine: str, rows: slice) -> Outcome:
    """theta whole on the host, and lambda+ of each step."""
    net = wrapped(problem.network(place), place, engine)
    params = list(net.parameters())
    weights = problem.train_saul(params, net, place, rows=rows)
    return [whole(p).cpu() for p in params], weights


def whole(p: Tensor) -> Tensor:
    p = p.detach()
    return p.full_tensor() if isinstance(p, DTensor) else p.clone()
