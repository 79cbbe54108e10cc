"""Keep torch.compile out of what moves weights, gradients and multipliers by hand."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def eager(method: Callable[P, T]) -> Callable[P, T]:
    """Run a method as it is written, also inside a function that is compiled.

    Traced, its changes to `.grad`, theta and Python's own objects are replayed between the pieces
    of a graph, not always in the order they are written in. A compiled model stays compiled inside.
    """

    @functools.wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_compiling():
            untraced: Any = torch.compiler.disable(method)
            return untraced(*args, **kwargs)
        return method(*args, **kwargs)

    return run
