"""SAM in three libraries: what a user types, and whether the weights are where they should be.

    python -m benchmarks.studies.sam_peers [--davda54 FOLDER] [--output FOLDER]

torch-alm, pytorch_optimizer, and davda54/sam, which is on no package index: FOLDER is a checkout of
it, without which it has no column. The same model, batches and number of steps in each; every
number is the largest difference of a weight from SAM written by hand, in float64.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import warnings
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from runpy import run_path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from benchmarks.report import tables
from benchmarks.report.results import RECORDED
from benchmarks.studies.code_lines import code_lines
from torch_alm import SAM
from torch_alm.unlearning.files import write_text

RHO, LR = 0.5, 0.05
STEPS = 5
Objective = Callable[[], Tensor]


class Ours:
    """torch-alm."""

    def make(self, params: Any) -> Any:
        return SAM(AdamW(params, lr=LR), rho=RHO)

    def step(self, optimizer: Any, objective: Objective) -> None:
        optimizer.backward(objective)
        optimizer.step()
        optimizer.zero_grad()


class TwoSteps:
    """A SAM that takes a class and its arguments, and is stepped twice."""

    kind: Any

    def make(self, params: Any) -> Any:
        return self.kind(params, AdamW, rho=RHO, lr=LR)

    def step(self, optimizer: Any, objective: Objective) -> None:
        objective().backward()
        optimizer.first_step(zero_grad=True)
        objective().backward()
        optimizer.second_step(zero_grad=True)


class PytorchOptimizer(TwoSteps):
    """pytorch_optimizer."""

    @property
    def kind(self) -> Any:
        return import_module("pytorch_optimizer").SAM


class Davda54(TwoSteps):
    """davda54/sam, from the folder of a checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def kind(self) -> Any:
        return run_path(str(self.folder / "sam.py"))["SAM"]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)).double()


def objectives(model: nn.Module, steps: range) -> list[Objective]:
    """One objective per step, each on a batch of its own."""

    def objective(step: int) -> Objective:
        generator = torch.Generator().manual_seed(step)
        x, y = (torch.randn(8, n, generator=generator, dtype=torch.float64) for n in (6, 4))
        return lambda: (model(x) - y).square().mean()

    return [objective(step) for step in steps]


def train(library: Any, model: nn.Module, optimizer: Any, steps: range) -> None:
    for objective in objectives(model, steps):
        library.step(optimizer, objective)


def by_hand(model: nn.Module, steps: range) -> None:
    """Take the steps with autograd alone."""
    params = [*model.parameters()]
    base = AdamW(params, lr=LR)
    for objective in objectives(model, steps):
        gradient = torch.autograd.grad(objective(), params)
        norm = torch.cat([g.flatten() for g in gradient]).norm()
        saved = [p.detach().clone() for p in params]
        with torch.no_grad():
            for p, g in zip(params, gradient, strict=True):
                p.add_(RHO * g / norm)
        for p, g in zip(params, torch.autograd.grad(objective(), params), strict=True):
            p.grad = g
        with torch.no_grad():
            for p, value in zip(params, saved, strict=True):
                p.copy_(value)
        base.step()


def apart(model: nn.Module, other: nn.Module) -> float:
    """The largest difference of a weight."""
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return max(float((whole(p) - whole(q)).abs().max()) for p, q in pairs)


def whole(p: Tensor) -> Tensor:
    return p.detach().full_tensor() if isinstance(p, DTensor) else p.detach()


def expected(steps: int) -> nn.Module:
    model = network()
    by_hand(model, range(steps))
    return model


def alone(library: Any) -> float:
    model = network()
    train(library, model, library.make(model.parameters()), range(STEPS))
    return apart(model, expected(STEPS))


def resumed(library: Any) -> float:
    """Go on from a checkpoint in memory, with a new optimizer around new parameters."""

    def hand_over(_: nn.Module, optimizer: Any, __: nn.Module, again: Any) -> None:
        again.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    return continued(library, hand_over)


def through_distributed_checkpoint(library: Any) -> float:
    """Save and load through `torch.distributed.checkpoint.state_dict`, which names parameters."""

    def hand_over(model: nn.Module, optimizer: Any, other: nn.Module, again: Any) -> None:
        state = get_optimizer_state_dict(model, optimizer)
        set_optimizer_state_dict(other, again, copy.deepcopy(state))

    return continued(library, hand_over)


def continued(library: Any, hand_over: Callable[[nn.Module, Any, nn.Module, Any], None]) -> float:
    """Train, hand the optimizer's state over to another one, and train that."""
    model = network()
    optimizer = library.make(model.parameters())
    train(library, model, optimizer, range(STEPS))
    other = copy.deepcopy(model)
    again = library.make(other.parameters())
    hand_over(model, optimizer, other, again)
    train(library, other, again, range(STEPS, 2 * STEPS))
    return apart(other, expected(2 * STEPS))


def sharded(library: Any) -> float:
    """Two processes, each with half of every weight (`fully_shard`), and the same batches."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_rank, (library, folder), nprocs=2, start_method="forkserver")
        return torch.load(Path(folder, "found"), weights_only=True)


def _rank(rank: int, library: Any, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        model = network()
        fully_shard(model)
        train(library, model, library.make(model.parameters()), range(STEPS))
        found = apart(model, expected(STEPS))
        if rank == 0:
            torch.save(found, Path(folder, "found"))
    finally:
        dist.destroy_process_group()


CHECKS: dict[str, Callable[[Any], float]] = {
    f"{STEPS} steps": alone,
    f"{STEPS} more from `state_dict()`": resumed,
    f"{STEPS} more through `torch.distributed.checkpoint`": through_distributed_checkpoint,
    f"{STEPS} steps under FSDP2, two processes": sharded,
}


def verdict(check: Callable[[Any], float], library: Any) -> str:
    """The number, or how it failed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return f"{check(library):.0e}"
    except Exception as error:  # whatever a library does, it is what was found
        return f"raises {type(error).__name__}"


def report(libraries: dict[str, Any]) -> str:
    """A row per check, a column per library."""
    rows = [["lines of `make` and `step`", *(str(lines(of)) for of in libraries.values())]]
    for name, check in CHECKS.items():
        print(f"{name} ...", flush=True)
        rows.append([name, *(verdict(check, library) for library in libraries.values())])
    packages = ", ".join(f"{n} {metadata.version(n)}" for n in ("torch", "pytorch_optimizer"))
    return "\n".join(
        [
            "# SAM beside others\n",
            "Written by `python -m benchmarks.studies.sam_peers --davda54 CHECKOUT`: the largest",
            f"difference of a weight from SAM by hand, in float64, on a CPU; {packages}.\n",
            tables.included(tables.markdown(["", *libraries], rows, "---")) + "\n",
        ]
    )


def lines(library: Any) -> int:
    return code_lines(type(library).make, type(library).step)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--davda54", type=Path, metavar="FOLDER", help="a checkout of davda54/sam")
    parser.add_argument("--output", type=Path, default=RECORDED)
    given = parser.parse_args(arguments)
    libraries: dict[str, Any] = {"torch-alm": Ours(), "pytorch_optimizer": PytorchOptimizer()}
    if given.davda54:
        libraries["davda54/sam"] = Davda54(given.davda54)
    text = report(libraries)
    write_text(given.output / "sam_peers.md", text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
