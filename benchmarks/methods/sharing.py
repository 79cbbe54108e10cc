"""Copies of a model that cost no more memory than what is trained."""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def copy_trainable(model: Model) -> Model:
    """A copy of a model that shares every parameter that is not trained.

    Cost: one copy of the trained parameters and of the buffers. With a subset of the parameters, or
    with LoRA, that is a few hundredths of a model.
    """
    shared = {id(p): p for p in model.parameters() if not p.requires_grad}
    return copy.deepcopy(model, memo=shared)


def frozen(model: Model, *, offloaded: bool = False) -> Model:
    """The model as it is now, to compare with: copied, nothing of it trained.

    Args:
        model: The model; it stays as it is.
        offloaded: Keep its weights in the machine's memory, and have each on the device only while
            it is used. That is for a model of which everything is trained.

    Raises:
        ValueError: `offloaded`, and the model shares weights that have to stay on the device.
    """
    if not offloaded:
        return copy_trainable(model).eval().requires_grad_(False)
    if not all(p.requires_grad for p in model.parameters()):
        raise ValueError(
            "reference=offloaded, and parts of the model are not trained: the reference shares "
            "them, and they would be taken from the model too. Did you mean reference=resident, "
            "which then costs next to nothing?"
        )
    from accelerate import cpu_offload

    device = next(model.parameters()).device
    reference = copy_trainable(model).eval().requires_grad_(False).to("cpu")
    return cpu_offload(reference, execution_device=device)
