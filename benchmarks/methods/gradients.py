"""Arithmetic on the gradients of all weights at once."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

Gradients = list[Tensor | None]


def take(params: Iterable[nn.Parameter]) -> Gradients:
    """Return the gradients and leave None in `.grad`."""
    taken = []
    for p in params:
        taken.append(p.grad)
        p.grad = None
    return taken


def add(params: Sequence[nn.Parameter], gradients: Gradients, factor: float) -> None:
    """Add: .grad += factor * gradients."""
    for p, gradient in zip(params, gradients, strict=True):
        if gradient is None:
            continue
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        p.grad.add_(gradient, alpha=factor)


def scale(params: Iterable[nn.Parameter], factor: float) -> None:
    """Scale: .grad *= factor."""
    for p in params:
        if p.grad is not None:
            p.grad.mul_(factor)


def dot(left: Gradients, right: Gradients) -> float:
    """Compute the inner product over all weights in float64; a missing gradient is zero."""
    pairs = zip(left, right, strict=True)
    return sum(
        float(torch.dot(a.flatten().double(), b.flatten().double()))
        for a, b in pairs
        if a is not None and b is not None
    )
