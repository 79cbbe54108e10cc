"""Base optimizers of other libraries: rows of `tests/table.py`; their tests skip without them."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch.optim import Optimizer

Make = Callable[[list[Any]], Optimizer]


def of(library: str, module: str, name: str, **settings: Any) -> Make:
    """Make one, or skip the test and say why."""

    def make(params: list[Any]) -> Optimizer:
        pytest.importorskip(library, reason=f"{library} is not installed")
        if library == "torchao":  # it compiles its step, which takes a compiler and a minute
            torch.compiler.set_stance("force_eager")
        return getattr(import_module(module), name)(params, **settings)

    return make


LION = of("pytorch_optimizer", "pytorch_optimizer", "Lion", lr=0.01, weight_decay=0.0)
TORCHAO = of("torchao", "torchao.optim", "AdamW8bit", lr=0.01, weight_decay=0.0)
BNB = of(
    "bitsandbytes", "bitsandbytes.optim", "AdamW8bit", lr=0.01, weight_decay=0.0, min_8bit_size=0
)

# What they do not do themselves, with or without us around them.
UNCOPIED = {  # torch's copies of an optimizer keep no attributes but groups and state
    "SAM(pytorch_optimizer.Lion)",
    "SAM(torchao.AdamW8bit)",
    "SAM(bitsandbytes.AdamW8bit)",
}
RATES_IN_FLOAT32 = {"SAM(torchao.AdamW8bit)"}  # a tensor, which may be filled and not replaced
NESTED_STATE = {"SAM(bitsandbytes.AdamW8bit)"}  # in its checkpoints, where shapes are not compared
