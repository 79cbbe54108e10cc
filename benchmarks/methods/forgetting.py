"""The forgetting measures a controller can look at; larger is more forgotten."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from benchmarks.methods.settings import Settings
from torch_alm.measures import (
    margin_certificate_of_logits,
    require_attainable,
    token_nll_of_logits,
)

Measure = Callable[[Tensor, Tensor], Tensor]

AGGREGATES = {"certificate": "max", "token_certificate": "mean"}
"""Certified share of answers that fail, and of tokens that do."""


def check_attainable(settings: Settings) -> None:
    """Raise a ValueError if no model could reach `alpha` with this `tau`, or it is still a word."""
    if isinstance(settings.alpha, str):
        raise ValueError(
            f"alpha is the word {settings.alpha!r}, and a controller compares with a number. "
            "Did you mean to resolve it first (`benchmarks/levels.py`)?"
        )
    if settings.measure in AGGREGATES:
        require_attainable(settings.alpha, settings.tau)


def measure(settings: Settings) -> Measure:
    """`settings.measure` over logits and labels, with its gradient.

    A certificate's value is the mean of max(phi, 0), its gradient that of phi: clamping would leave
    what is still remembered without a gradient, and not clamping would let one remembered answer
    outweigh all others.
    """
    if settings.measure == "token_nll":
        return token_nll_of_logits
    aggregate, tau = AGGREGATES[settings.measure], settings.tau

    def certificate(logits: Tensor, labels: Tensor) -> Tensor:
        phi = margin_certificate_of_logits(logits, labels, tau=tau, aggregate=aggregate)
        clamped = margin_certificate_of_logits(
            logits.detach(), labels, tau=tau, aggregate=aggregate, clamp=True
        )
        return phi - phi.detach() + clamped

    return certificate
