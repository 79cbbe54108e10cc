"""How far a constraint is from the conditions of Karush, Kuhn and Tucker."""

from collections.abc import Iterable

from torch import Tensor

from torch_alm._control import numbers
from torch_alm._control.numbers import Number
from torch_alm._optim import gradients


def feasibility(c: Number, *, is_equality: bool) -> Number:
    """How far the constraint is from being met: [c]_+, or |c| for an equality."""
    return abs(c) if is_equality else numbers.positive(c)


def complementarity(c: Number, weight: Number, *, is_equality: bool) -> Number:
    """|min(-c, lambda+)|: zero where a met constraint has no slack or no weight; 0 for equalities.

    Where the constraint is not met this is the violation.
    """
    return 0.0 * c if is_equality else abs(numbers.choose(-c < weight, -c, weight))


def stationarity(gradient: Iterable[Tensor | None]) -> float:
    """The norm of the Lagrangian's gradient, over all tensors jointly; one synchronisation."""
    return gradients.norm(gradient).item()
