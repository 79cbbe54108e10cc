"""Processes with a gloo group between them; two are kept for all tests.

Each call gets a group of its own, so that one that broke does not reach the next.
"""

import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD = 2
# Imported once, by the process that the others are forked from: also what torch imports late, in an
# optimizer's first step, transformers with its Trainer, and a run of the command with its report.
PRELOADED = [
    "tests.core.distributed.test_checkpoint", "torch._dynamo", "tests.integrations.test_trainers",
    "tests.unlearning.test_ranks", "torch_alm.unlearning.outcome", "rouge_score.rouge_scorer",
]  # fmt: skip
PATIENCE = 300.0  # seconds until a call that does not answer is given up


def preload() -> None:
    """Set what is imported before the first process is forked."""
    mp.get_context("forkserver").set_forkserver_preload(PRELOADED)


class Ranks:
    """Processes that run one function at a time, each with its rank as the first argument."""

    def __init__(self, folder: Path, world: int = WORLD) -> None:
        """Start them, after `preload`; their groups meet at files in the folder."""
        self._folder, self._calls, self._world = folder, 0, world
        self._context: Any = mp.get_context("forkserver")
        self._start()

    def _start(self) -> None:
        self._ends, self._processes = [], []
        for rank in range(self._world):
            here, there = self._context.Pipe()
            arguments = (rank, self._world, there)
            process = self._context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            self._ends.append(here)
            self._processes.append(process)

    def __call__(self, function: Callable, *args: Any, timeout: float = 30.0) -> list[Any]:
        """Each rank's answer; an `AssertionError` with its traceback where one raised.

        A collective that waits longer than `timeout` seconds raises on the rank that waits. A rank
        that dies returns `None`. After either, new ones are started: what one did not join would
        keep them from meeting again.
        """
        self._calls += 1
        store = str(self._folder / f"group-{self._calls}")
        for end in self._ends:
            end.send((store, timeout, function, args))
        answers = [self._answer(end) for end in self._ends]
        failures = [a[1] for a in answers if a is not None and not a[0]]
        if failures or None in answers:
            self.stop()
            self._start()
        assert not failures, "\n".join(failures)
        return [None if a is None else a[1] for a in answers]

    @staticmethod
    def _answer(end: Connection) -> tuple[bool, Any] | None:
        try:
            return end.recv() if end.poll(PATIENCE) else None
        except EOFError:
            return None

    def stop(self) -> None:
        for process, end in zip(self._processes, self._ends, strict=True):
            process.kill()
            process.join()
            process.close()
            end.close()


def _serve(rank: int, world: int, end: Connection) -> None:
    torch.set_num_threads(1)
    while True:
        store, timeout, function, args = end.recv()
        try:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{store}",
                rank=rank,
                world_size=world,
                timeout=timedelta(seconds=timeout),
            )
            dist.barrier()  # or a rank could leave before the other has joined
            answer = True, function(rank, *args)
        except BaseException:
            answer = False, f"rank {rank}:\n{traceback.format_exc()}"
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        end.send(answer)
