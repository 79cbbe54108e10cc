"""Runs under torchrun's agent: a training whose rank 1 dies once, and a script.

Where a rank dies, the agent starts both again, and they go on from the newest whole checkpoint.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tests.core.distributed import task
from tests.core.distributed.test_checkpoint import Saved


def newest(folder: Path) -> int:
    """The step of the newest checkpoint that was written to its end; 0 without one."""
    whole = (path for path in folder.iterdir() if (path / ".metadata").exists())
    return max((int(path.name) for path in whole), default=0)


def train(folder: str, dies_at: int) -> dict[str, Any]:
    """A process as torchrun starts it: rank and restarts are known from its environment alone."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, restarts = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    net = task.wrapped("fsdp")
    optimizer = task.dual(list(net.parameters()))
    saved, start = Saved(net, optimizer), newest(Path(folder))
    if start:
        saved.load(f"{folder}/{start}")

    def dies(loss: torch.Tensor) -> None:
        loss.backward()
        steps = optimizer.constraint.metrics()["steps"]
        if (rank, restarts, steps) == (1, 0, dies_at):
            os._exit(1)

    optimizer.backward_fn = dies
    for step in task.steps(net, optimizer, task.rows_of(rank), range(start, task.STEPS)):
        if (step + 1) % 2 == 0 and step + 1 < task.STEPS:
            saved.save(f"{folder}/{step + 1}")
    found = {
        "theta": [task.whole(p).tolist() for p in net.parameters()],
        "multiplier": optimizer.constraint.multiplier,
        "start": start,
        "restarts": restarts,
    }
    dist.destroy_process_group()
    return found


def launch(function: Callable[..., Any], *arguments: Any, logs: Path | None = None) -> list[Any]:
    """The answers of both ranks; their processes are forked where those of `Ranks` are.

    This is torchrun's agent and what it sets in the environment; what they say goes to `logs`.
    """
    told = DefaultLogsSpecs(log_dir=str(logs), redirects=Std.ALL) if logs else DefaultLogsSpecs()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="elastic",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=1,
        monitor_interval=0.1,
        start_method="forkserver",
        logs_specs=told,
    )
    with ThreadPoolExecutor(1) as thread:  # in the first thread the agent would take the signals
        answers = thread.submit(elastic_launch(config, function), *arguments).result()
    return [answers[rank] for rank in (0, 1)]
