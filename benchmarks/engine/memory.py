"""Memory of a step, counted on tensors without data: no weights, no device needed.

The benchmark scripts count before a run on a pretrained model, and refuse what the device could not
hold. Counted is what tensors occupy at most: weights, gradients, moments, the copy of SAM, the
frozen reference, activations. Not counted: what libraries and the allocator keep for themselves, a
few gigabytes on a GPU, and the evaluation.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks import methods
from benchmarks.engine.counters import Answers, Fake, Memory
from benchmarks.engine.model_setup import ModelSetup, set_up
from benchmarks.methods import Settings
from benchmarks.methods.method import OPTIMIZERS
from torch_alm.unlearning.models import check_folder, trainable

GB = 1e9
SPARE = 0.95
"""Share of a device that tensors may fill; the rest is the allocator's and the libraries'."""


class Count(NamedTuple):
    """Bytes of a model and of a step."""

    weights: int
    trained: int
    peak: int


def counted(
    config: Any, how: ModelSetup, key: str, settings: Settings, tokens: tuple[int, int]
) -> Count:
    """The memory of two steps of a method, the second of which finds all moments made.

    Args:
        config: Of a causal language model of transformers.
        how: What is trained, and in which numbers.
        key: A method.
        settings: Its settings.
        tokens: Rows and columns of a batch, of either kind.

    Cost: none of the model's: seconds of Python, and no memory to speak of.
    """
    with warnings.catch_warnings(), Fake(), Memory() as memory, Answers():
        warnings.simplefilter("ignore")  # of what has no data
        resident, offloaded = _resident(settings)
        # peft moves its adapters to where they are, which tensors without data refuse
        with mock.patch.object(nn.Module, "to", lambda module, *_, **__: module):
            model: Any = set_up(AutoModelForCausalLM.from_config(config), how)
        parts = model.parameters(), trainable(model).values()
        weights, trained = (sum(p.nbytes for p in part) for part in parts)
        with mock.patch.dict(OPTIMIZERS, adamw8bit=Quantised):
            method = methods.build(key, model.train(), resident)
        memory.restart()
        names = ("input_ids", "attention_mask", "labels")
        batch = {name: torch.ones(tokens, dtype=torch.long) for name in names}
        for _ in range(2):
            method.step(batch, batch)
        # the reference that was counted on the device is elsewhere, but for one weight at a time
        elsewhere = weights - largest(model) if offloaded and hasattr(method, "reference") else 0
    return Count(weights, trained, memory.peak - elsewhere)


def _resident(settings: Settings) -> tuple[Settings, bool]:
    """The settings with a number for alpha and the reference on the device; whether it was not."""
    alpha = 1.0 if isinstance(settings.alpha, str) else settings.alpha
    changed = dataclasses.replace(settings, alpha=alpha, reference="resident")
    return changed, settings.reference == "offloaded"


class Quantised(Optimizer):
    """AdamW's memory with moments of 8 bits and nothing else of it, for counting.

    As in torchao: a byte an entry and moment, a float32 scale for each block of 256, and a table.
    """

    def __init__(self, params: Any, **defaults: Any) -> None:
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Make the moments where there are none."""
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            if p not in self.state:
                self.state[p] = {"exp_avg": self.moment(p), "exp_avg_sq": self.moment(p)}

    def moment(self, p: Tensor) -> list[Tensor]:
        """Codes, scales and the table between them."""
        codes = torch.zeros(p.shape, dtype=torch.uint8)
        return [codes, torch.zeros(-(-p.numel() // 256)), torch.zeros(256)]


def largest(model: nn.Module) -> int:
    """Bytes of the largest parameter: what an offloaded reference has on the device at a time."""
    return max(p.nbytes for p in model.parameters())


# Before a run


def announce(
    name: str,
    how: ModelSetup,
    settings: Mapping[str, Settings],
    longest: int,
    limit: float | None = None,
) -> None:
    """Say what each method will need, and refuse what the device has not.

    Args:
        name: Of the pretrained model; only its configuration is read.
        how: What is trained, and in which numbers.
        settings: Of each method.
        longest: Tokens of the longest rows.
        limit: In gigabytes, in place of what the device has.

    Raises:
        ValueError: A method would not fit.
    """
    check_folder(name)
    config = AutoConfig.from_pretrained(name)
    available = device_memory() if limit is None else limit * GB
    print(f"Memory, counted for {name} ({available / GB:.1f} GB here):", flush=True)
    for key, its in settings.items():
        found = counted(config, how, key, its, (its.batch_size, longest))
        print(f"  {methods.label(key)}: {described(found)}", flush=True)
        if found.peak > SPARE * available:
            raise ValueError(
                f"{methods.label(key)} needs {found.peak / GB:.1f} GB on {name}, and a device of "
                f"{available / GB:.1f} GB would run out of memory. Did you mean --checkpointing, "
                "--dtype bfloat16, --parameters rmu, --lora 16 or a smaller --batch-size? "
                "--memory-limit GB says otherwise."
            )


def described(found: Count) -> str:
    return (
        f"{found.peak / GB:.1f} GB at most, {found.weights / GB:.1f} of weights, of which "
        f"{found.trained / GB:.1f} are trained"
    )


def device_memory() -> float:
    """Bytes of the GPU where there is one, else of this machine."""
    if torch.cuda.is_available():
        return float(torch.cuda.get_device_properties(0).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
