"""The forgetting measures a controller can look at; larger is more forgotten."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from benchmarks.methods.settings import Settings
from torch_alm.language import IGNORE
from torch_alm.measures import (
    answer_nll,
    certified_failure_of_logits,
    exact_match_failure_of_logits,
    require_attainable,
    token_nll_of_logits,
)

Measure = Callable[[Tensor, Tensor], Tensor]

AGGREGATES = {"certificate": "max", "token_certificate": "mean"}
"""Certified share of answers that fail, and of tokens that do."""

FAILURES = {"failure": "max", "token_failure": "mean"}
"""The shares themselves: they say when to stop, and have no gradient to follow."""


def check_attainable(settings: Settings) -> None:
    """Raise a ValueError if no model could reach `alpha` with this `tau`, or it is still a word."""
    for name in ("alpha", *(["level"] if settings.measure == "level_share" else [])):
        if isinstance(getattr(settings, name), str):
            raise ValueError(
                f"{name} is the word {getattr(settings, name)!r}, and a controller compares with a "
                "number. Did you mean to resolve it first (`benchmarks/engine/levels.py`)?"
            )
    if settings.measure in ("level_share", *FAILURES) and float(settings.alpha) > 1:
        raise ValueError(
            f"alpha is {settings.alpha} and the measure {settings.measure}, which never exceeds 1: "
            "the constraint could never be met. Did you mean a share such as 0.95?"
        )
    if settings.measure in AGGREGATES:
        require_attainable(float(settings.alpha), settings.tau)


def measure(settings: Settings) -> Measure:
    """`settings.measure` over logits and labels, with its gradient."""
    if settings.measure == "token_nll":
        return token_nll_of_logits
    if settings.measure == "level_share":
        return level_share(float(settings.level))
    if settings.measure in FAILURES:
        return partial(exact_match_failure_of_logits, aggregate=FAILURES[settings.measure])
    aggregate, tau = AGGREGATES[settings.measure], settings.tau
    return partial(certified_failure_of_logits, tau=tau, aggregate=aggregate)


def level_share(level: float) -> Measure:
    """mean_i min(L_i / level, 1), with L_i the token-mean cross-entropy of answer i.

    An answer that has reached the level counts fully and is pushed no further, so that one
    forgotten far too well does not make up for one that is remembered.
    """

    def share(logits: Tensor, labels: Tensor) -> Tensor:
        lengths = (labels[:, 1:] != IGNORE).sum(dim=1)
        losses = answer_nll(logits, labels).sum(dim=1) / lengths
        return (losses / level).clamp(max=1.0).mean()

    return share
