"""The forgetting measures a controller can look at; larger is more forgotten."""

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor

from benchmarks.methods.settings import Settings
from torch_alm.measures import (
    certified_failure,
    exact_match_failure,
    require_attainable,
    token_nll,
)

Measure = Callable[..., Tensor]

CERTIFIED = {"certificate": "max", "token_certificate": "mean"}
"""Certified share of answers that fail, and of tokens that do."""

FAILURES = {"failure": "max", "token_failure": "mean"}
"""The shares themselves: they say when to stop, and have no gradient to follow."""


BEYOND = 1.1
"""Times alpha up to which `row_nll` counts a row, so that the mean can exceed alpha."""


def check_attainable(settings: Settings) -> None:
    """Raise a ValueError if no model could reach `alpha`, or it is still a word."""
    alpha = settings.alpha
    if isinstance(alpha, str):
        raise ValueError(
            f"alpha is {alpha!r}, and a controller compares with a number. Did you mean RMU's "
            "losses, for which relative:SHARE is a share of c^2/d?"
        )
    if settings.measure in FAILURES and alpha > 1:
        raise ValueError(
            f"alpha is {alpha} and the measure {settings.measure}, which never exceeds 1: the "
            "constraint could never be met. Did you mean a share such as 0.95?"
        )
    if settings.measure in CERTIFIED:
        require_attainable(alpha, settings.tau)


def measure(settings: Settings) -> Measure:
    """`settings.measure` of a model and a batch, with its gradient where it has one."""
    name = settings.measure
    if name == "token_nll":
        return token_nll
    if name == "row_nll":
        return partial(row_nll, most=BEYOND * float(settings.alpha))
    if name in FAILURES:
        return partial(exact_match_failure, aggregate=FAILURES[name])
    return partial(certified_failure, tau=settings.tau, aggregate=CERTIFIED[name])


def row_nll(model: Callable[..., Tensor], batch: Mapping[str, Tensor], most: float) -> Tensor:
    """Mean over rows of min(L, `most`), with L the mean loss of the row's answer in nats per token.

    A row that has reached `most` has no gradient left and cannot stand in for another.
    """
    return token_nll(model, batch, reduction="none").clamp(max=most).mean()
