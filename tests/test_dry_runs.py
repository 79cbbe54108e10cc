"""A dry run on tensors without numbers (to count memory, say) leaves nothing behind."""

import json
import subprocess
import sys

PROGRAM = """
import json, sys, warnings

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM
from torch_alm.filters import Mean

class Ones(TorchDispatchMode):
    "Whoever asks a tensor for its number is told 1."
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1.0 if args[0].is_floating_point() else 1
        return func(*args, **(kwargs or {}))

def train(dtype):
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

warnings.simplefilter("ignore")
for dtype in (torch.bfloat16, torch.float32):
    if "dry" in sys.argv:
        with FakeTensorMode(), Ones():
            train(dtype)
    theta, constraint = train(dtype)
    print(json.dumps([theta.tolist(), constraint.multiplier, constraint.metrics()["violation"]]))
"""


def trained(*arguments: str) -> list[object]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in found.splitlines()]


def test_a_dry_run_changes_nothing_that_follows_in_the_process() -> None:
    plain = trained()
    assert len(plain) == 2 and plain[0] != plain[1]
    assert trained("dry") == plain
