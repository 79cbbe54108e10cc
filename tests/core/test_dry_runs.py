"""A dry run on tensors without numbers (to count memory, say) leaves nothing behind."""

import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM
from torch_alm.filters import Mean


class Ones(TorchDispatchMode):
    """Numbers of tensors that have none: each is 1."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1.0 if args[0].is_floating_point() else 1
        return func(*args, **(kwargs or {}))


def train(dtype: torch.dtype) -> tuple[torch.Tensor, ALMConstraint]:
    theta = torch.nn.Parameter((torch.arange(1, 9) / 8).to(dtype))
    constraint = ALMConstraint(None, alpha=41.0, mu=0.5, filter=Mean(2, deadband=0.5))
    optimizer = DualOptimizer(
        SAM(torch.optim.AdamW([theta], lr=0.1), 0.05, rounding="stochastic"),
        ReverseSAM(torch.optim.SGD([theta], lr=0.1), 0.05, rounding="stochastic"),
        constraint,
    )
    for _ in range(3):
        optimizer.backward(retain=lambda: theta.square().sum(), forget=lambda: theta.exp().sum())
        optimizer.step()
        optimizer.zero_grad()
    return theta, constraint


def trained(dry: bool) -> list[list[object]]:
    """The ends of two runs, each after a dry one if so asked; for a process of its own."""
    found = []
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    for dtype in (torch.bfloat16, torch.float32):
        if dry:
            with FakeTensorMode(), Ones():
                train(dtype)
        theta, constraint = train(dtype)
        violation = constraint.metrics()["violation"]
        found.append([theta.tolist(), constraint.multiplier, violation])
    return found


def in_a_new_process(dry: bool) -> list[list[object]]:
    with ProcessPoolExecutor(1, mp_context=get_context("forkserver")) as processes:
        return processes.submit(trained, dry).result()


@pytest.mark.usefixtures("forks")
def test_a_dry_run_changes_nothing_that_follows_in_the_process() -> None:
    plain = in_a_new_process(False)
    assert len(plain) == 2 and plain[0] != plain[1]
    assert in_a_new_process(True) == plain
