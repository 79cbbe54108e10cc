"""Directions of forgetting: what is descended on forget rows, and what is measured there."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from torch import Tensor

from torch_alm.measures import npo_of_logits, simnpo_of_logits

Measure: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Logits and labels of a batch, and how far it is forgotten; larger is more."""


class Pair(NamedTuple):
    """The loss U to descend, and the measured value F; scalars."""

    loss: Tensor
    value: Tensor


def ascent(measure: Measure, logits: Tensor, labels: Tensor) -> Pair:
    """U = -F, the direction of gradient ascent and gradient difference."""
    value = measure(logits, labels)
    return Pair(-value, value)


def npo(
    measure: Measure, logits: Tensor, labels: Tensor, reference_nll: Tensor, beta: float
) -> Pair:
    """U = NPO against the summed NLL of each row under the model of before (Zhang et al. 2024)."""
    loss = npo_of_logits(logits, labels, reference_nll, beta=beta)
    return Pair(loss, measure(logits, labels))


def simnpo(
    measure: Measure, logits: Tensor, labels: Tensor, *, beta: float, margin: float = 0.0
) -> Pair:
    """U = SimNPO with its gamma as `margin` (Fan et al. 2024), which needs no reference."""
    loss = simnpo_of_logits(logits, labels, beta=beta, delta=margin)
    return Pair(loss, measure(logits, labels))
