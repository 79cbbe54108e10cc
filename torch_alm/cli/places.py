"""The device that a model computes on, and the precision of its numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from torch_alm.unlearning.refusal import Refusal


@dataclass(frozen=True)
class Place:
    """The device that a model computes on, and its precision.

    Attributes:
        device: `"cpu"`, `"cuda"` or `"mps"`.
        autocast: whether forward passes of training run under bfloat16 autocast.
        dtype: of the weights. float32, because bfloat16 swallows small steps and perturbations;
            under LoRA on a GPU, where they are frozen, the base weights are bfloat16.
    """

    device: str
    autocast: bool
    dtype: torch.dtype

    def context(self) -> Callable[[], Any]:
        """The function that makes the context of a training forward pass."""
        return partial(torch.autocast, self.device, torch.bfloat16, enabled=self.autocast)


def place(device: str, precision: str, *, lora: bool) -> Place:
    """The place for what was asked, `"auto"` being the GPU and bfloat16 where there is one."""
    found = _best_device() if device == "auto" else device
    if found == "cuda" and not torch.cuda.is_available():
        raise Refusal("--device cuda, and torch finds no GPU here. Did you mean --device cpu?")
    if found == "mps" and not torch.backends.mps.is_available():
        raise Refusal(
            "--device mps, and torch finds no Metal GPU here (of a Mac). Did you mean --device cpu?"
        )
    on_gpu = found == "cuda" and torch.cuda.is_bf16_supported()
    autocast = on_gpu if precision == "auto" else precision == "bf16"
    narrow = lora and autocast and on_gpu
    return Place(found, autocast, torch.bfloat16 if narrow else torch.float32)


def described(device: str) -> str:
    """A device as a report names it."""
    if device == "cuda":
        return f"cuda, {torch.cuda.get_device_name()}"
    threads = torch.get_num_threads()
    return f"cpu, {threads} thread{'s' * (threads > 1)}" if device == "cpu" else device


def _best_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
