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
    """Size of the model that is saved: all of its weights in a dtype, or with None adapters alone.

    Args:
        model: the whole of it, in whatever dtype it is trained.
        dtype: of what is saved.
    """
    if dtype is None:
        return trained_bytes(model)
    return sum(p.numel() for p in model.parameters()) * dtype.itemsize


def check_space(output: Path, state: int, saved: int) -> None:
    """Refuse before the work, not after it, if state and result have no place.

    Args:
        output: the folder, which need not be there yet.
        state: bytes of the state.
        saved: bytes of the result.

    Raises:
        Refusal: tells how much there is, and how much is needed for what.
    """
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
