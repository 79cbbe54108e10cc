"""The status of a constraint: numbers, one word, and warnings."""

import warnings
from typing import Any

from torch_alm._constraint import numbers
from torch_alm._constraint.numbers import Number
from torch_alm._constraint.observations import Mean
from torch_alm._constraint.settings import Rule, Settings
from torch_alm._constraint.state import State, is_violated

ROUNDING = 1e-6  # of alpha, or of 1 if that is 0: float32 measures no finer

# Worst first: a group is as well as its worst member.
STATUSES = (
    "non_finite",
    "suspected_infeasible",
    "capped",
    "violated",
    "unmeasured",
    "satisfied",
    "released",
)


def metrics(state: State, settings: Settings) -> dict[str, Any]:
    """Return the numbers of `ALMConstraint.metrics`."""
    history = state.history
    return {
        "alpha": numbers.average(settings.alpha),
        "value": numbers.average(state.value),
        "violation": numbers.average(state.violation),
        "multiplier": numbers.average(state.multiplier),
        "weight": numbers.average(state.weight),
        "active_share": history.active_steps / max(history.steps, 1),
        "mu": numbers.average(state.mu),
        "skipped": history.skipped,
        "steps": history.steps,
        "status": status(state, settings),
    }


def status(state: State, settings: Settings) -> str:
    """Return one word for the state after a step."""
    if state.history.is_blind:
        return "non_finite"
    alpha = numbers.choose(settings.alpha == 0, 1.0, settings.alpha)
    if is_violated(settings, state.violation, ROUNDING * abs(alpha)):
        if state.limiting(settings) is not None:
            return "capped"
        return "suspected_infeasible" if state.stall.is_stalled else "violated"
    if numbers.any_of(state.violation != state.violation):
        return "unmeasured"
    return "satisfied" if numbers.any_of(state.weight != 0) else "released"


def warn_not_finite(bad: int, so_far: int) -> None:
    """Say that measurements were skipped."""
    _warn(
        f"ALMConstraint.step: {bad} measurement(s) of this step are not finite; skipped "
        f"({so_far} so far), the multiplier does not see them. Is the loss unbounded?"
    )


def refuse(found: Mean, state: State, settings: Settings) -> None:
    """Raise for a step that the policy does not skip."""
    if found.bad:
        raise FloatingPointError(
            f"ALMConstraint.step: {found.bad} measurement(s) of this step are not finite and would "
            "have made the multiplier so for ever. Is the loss unbounded?"
        )
    if state.preview(found, settings).overflows:
        raise FloatingPointError(_overflow(state, found.c, "and would have stayed so for ever"))


def warn_overflowed(state: State, c: Number) -> None:
    """Say that an update which would have made the multiplier infinite was left out."""
    _warn(_overflow(state, c, f"and is left out ({state.history.skipped} so far)"))


def _overflow(state: State, c: Number, end: str) -> str:
    return (
        f"ALMConstraint.step: lambda + mu c is not finite, with lambda up to "
        f"{numbers.largest(state.multiplier):g}, mu = {numbers.largest(state.mu):g} and a "
        f"violation up to {numbers.largest(abs(c)):g}, {end}. Is mu too large, or the measure "
        "unbounded?"
    )


def warn_never_stepped(count: int, multiplier: Number) -> None:
    """Say that measurements pile up, and nobody steps the constraint."""
    _warn(
        f"ALMConstraint: {count} measurements wait for a step. lambda is still "
        f"{numbers.largest(multiplier):g}. Did you mean `constraint.step()` after each "
        "`optimizer.step()`, or `constraint.attach(optimizer)` before the loop?",
        depth=5,
    )


def warn_limited(rule: Rule, c: Number) -> None:
    """Say that the stored multiplier has reached its limit."""
    _warn(
        f"ALMConstraint.step: the stored multiplier has reached the limit of {rule!r} at a "
        f"violation of {numbers.largest(c):g} and grows no further. Can the constraint be met, or "
        "is the limit too low?"
    )


def _warn(text: str, depth: int = 4) -> None:
    """Point at the line of the loop, `depth` calls up."""
    warnings.warn(text, stacklevel=depth)
