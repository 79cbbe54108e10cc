"""Modes of a model, module by module: a frozen layer may be in another than the rest."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def modes_kept(model: nn.Module, *, evaluate: bool = False) -> Iterator[None]:
    """Return every module to the mode it was in; inside, they may all be evaluated."""
    modes = [(module, module.training) for module in model.modules()]
    if evaluate:
        model.eval()
    try:
        yield
    finally:
        for module, is_training in modes:
            if module.training != is_training:  # by its own function: some merge weights in it
                module.train(is_training)
