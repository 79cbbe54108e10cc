"""A step of SAUL can be read through: few functions in few modules are visited on the way."""

import sys
from collections import defaultdict
from pathlib import Path
from types import FrameType

import torch
from torch import nn
from torch.optim import AdamW

import torch_alm
from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM

ROOT = Path(torch_alm.__file__).parent

# Functions and modules that a `backward`, `step` and `zero_grad` with SAM on both sides may visit,
# and those of its constraint. Comprehensions and lambdas belong to the function they stand in.
FUNCTIONS, MODULES = 62, 8
CONSTRAINT = 16, 2


def visited() -> dict[str, set[str]]:
    """The library's functions that a step calls, by module; its gate is open."""
    theta = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]
    optimizer = DualOptimizer(
        SAM(AdamW(theta)), ReverseSAM(AdamW(theta)), ALMConstraint(None, alpha=9.0, mu=1.0)
    )
    found: dict[str, set[str]] = defaultdict(set)

    def watch(frame: FrameType, event: str, _: object) -> None:
        code, path = frame.f_code, Path(frame.f_code.co_filename)
        is_named = not code.co_name.startswith("<") and code.co_name not in (
            "hear",
            "_count",
        )  # other constraints'
        if event == "call" and ROOT in path.parents and is_named:
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[module].add(f"{code.co_firstlineno} {code.co_name}")

    def step() -> None:
        loss = lambda: sum(p.square().sum() for p in theta)  # noqa: E731
        optimizer.backward(retain=loss, forget=loss)
        optimizer.step()
        optimizer.zero_grad()

    step()  # what is imported or cached once is no part of the walk
    profiler = sys.getprofile()
    sys.setprofile(watch)
    try:
        step()
    finally:
        sys.setprofile(profiler)
    assert optimizer.constraint.weight > 0, "the way through the open gate"
    return found


def test_a_step_is_a_short_walk() -> None:
    found = visited()
    assert any(name.endswith(" _accumulate") for name in found["sam"])
    own = {m: names for m, names in found.items() if m.startswith(("constraint", "_constraint"))}
    for some, limits in ((found, (FUNCTIONS, MODULES)), (own, CONSTRAINT)):
        assert sum(map(len, some.values())) <= limits[0] and len(some) <= limits[1], some
