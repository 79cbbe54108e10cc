"""The drawings by name: how each is made, and what it shows in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from docs.figures import certificate, constrained, cost, perturbations, run, stopping, themes


@dataclass(frozen=True)
class Drawing:
    """A figure and its text for those who cannot see it."""

    figure: themes.Draw
    alt: Callable[[], str]


DRAWINGS = {
    "stopping": Drawing(stopping.figure, stopping.alt),
    "perturbations": Drawing(perturbations.figure, perturbations.alt),
    "certificate": Drawing(certificate.figure, certificate.alt),
    "run": Drawing(run.figure, run.alt),
    "cost": Drawing(cost.figure, cost.alt),
    **{
        f"constrained-{name}": Drawing(
            partial(constrained.figure, name), partial(constrained.alt, name)
        )
        for name in constrained.NAMES
    },
}
