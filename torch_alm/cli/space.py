"""Room on the disk: what a run has to write down before it is over."""

import shutil
from pathlib import Path

import torch
from torch import nn

from torch_alm.cli.methods import Method
from torch_alm.unlearning.models import trainable
from torch_alm.unlearning.refusal import Refusal


def state_bytes(model: nn.Module, method: type[Method]) -> int:
    """Size of a run's state: the weights that move, and two moments of each per optimizer."""
    return trained_bytes(model) * (1 + 2 * method.optimizers)


def trained_bytes(model: nn.Module) -> int:
    """Size of the weights that move."""
    return sum(p.numel() * p.element_size() for p in trainable(model).values())


def saved_bytes(model: nn.Module, dtype: torch.dtype | None) -> int:
    """Size of what is saved: all weights of the model in a dtype, or with None adapters alone."""
    if dtype is None:
        return trained_bytes(model)
    return sum(p.numel() for p in model.parameters()) * dtype.itemsize


def check_space(output: Path, state: int, saved: int) -> None:
    """Refuse before the work, not after it, if so many bytes of state and result have no place."""
    there = next(folder for folder in (output, *output.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if free < state + saved:
        raise Refusal(
            f"--output {output} has {megabytes(free)} free, and the run needs "
            f"{megabytes(state + saved)}: {megabytes(saved)} for the model, and "
            f"{megabytes(state)} for weights and optimizers, without which it could not be "
            "stopped and taken up again. Is there a larger disk?"
        )


def megabytes(count: int) -> str:
    """Bytes as a sentence has them."""
    return f"{count / 1e6:,.1f} MB"
