"""Copies of a model that need memory for the trained parameters alone."""

import copy
from typing import TypeVar

from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def copy_trainable(model: Model) -> Model:
    """Return a copy of a model that shares every parameter that is not trained.

    Cost: one copy of the trained parameters and of the buffers. With a subset of the parameters, or
    with LoRA, these are a few hundredths of a model.
    """
    shared = {id(p): p for p in model.parameters() if not p.requires_grad}
    return copy.deepcopy(model, memo=shared)


def copy_frozen(model: Model) -> Model:
    """Return a frozen copy of the model as it is now, to compare with."""
    return copy_trainable(model).eval().requires_grad_(False)
