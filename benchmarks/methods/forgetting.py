"""The forgetting measures of a controller; larger is more forgotten."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from benchmarks.methods.settings import Settings
from torch_alm.measures import certified_failure, require_attainable, token_nll

Measure = Callable[..., Tensor]

CERTIFIED = {"certificate": "max", "token_certificate": "mean"}
"""Certified share of answers that fail, and of tokens that do."""

BEYOND = 1.1
"""Times alpha, for which rows count that have all reached it."""


def check_attainable(settings: Settings) -> None:
    """Raise a ValueError if no model can reach `alpha`, or it is still a word."""
    alpha = settings.alpha
    if isinstance(alpha, str):
        raise ValueError(
            f"alpha is {alpha!r}, and a controller compares with a number. Did you mean RMU's "
            "losses, for which relative:SHARE is a share of c^2/d?"
        )
    if settings.measure in CERTIFIED:
        require_attainable(alpha, settings.tau)


def measure(settings: Settings) -> Measure:
    """Return `settings.measure` as a function of a model and a batch."""
    name = settings.measure
    if name == "token_nll":
        return token_nll
    if name == "row_nll":
        return lambda model, batch: rows_nll(model, batch, settings)[1]
    return partial(certified_failure, tau=settings.tau, aggregate=CERTIFIED[name])


def rows_nll(
    model: Callable[..., Tensor], batch: Mapping[str, Tensor], settings: Settings
) -> tuple[Tensor, Tensor]:
    """Return the loss to descend if every row has a goal, and the measure for the controller.

    The loss is the mean of -L over the rows whose answer is below alpha in nats per token: a row
    that has reached it is pushed no further, and the last ones are pushed as hard as all.
    """
    loss = token_nll(model, batch, reduction="none")
    value, low = row_goals(loss.detach(), settings)
    return -torch.where(low, loss, 0.0).sum() / low.sum().clamp(min=1), value


def row_goals(losses: Tensor, settings: Settings) -> tuple[Tensor, Tensor]:
    """Return the mean over rows of min(L, alpha), and which rows are below alpha.

    If none is, the value is `BEYOND` times alpha, which closes the gate.
    """
    alpha = float(settings.alpha)
    low = losses < alpha
    return torch.where(low.any(), losses.clamp(max=alpha).mean(), BEYOND * alpha), low
