"""Copies of a model that cost no more memory than what is trained."""

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


def copy_frozen(model: Model) -> Model:
    """The model as it is now, to compare with: copied, nothing of it trained."""
    return copy_trainable(model).eval().requires_grad_(False)
