"""The status of a constraint: numbers, one word, and warnings."""

import warnings
from typing import Any

from torch_alm._constraint import numbers
from torch_alm._constraint.numbers import Number
from torch_alm._constraint.observations import Mean
from torch_alm._constraint.settings import Settings
from torch_alm._constraint.state import State, is_met

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
    alpha, c = numbers.choose(settings.alpha == 0, 1.0, settings.alpha), state.violation
    if numbers.any_of((c == c) & (is_met(settings, c, ROUNDING * abs(alpha)) == 0)):
        if state.is_limited(settings):
            return "capped"
        return "suspected_infeasible" if state.stall.is_stalled else "violated"
    if numbers.any_of(c != c):
        return "unmeasured"
    return "satisfied" if numbers.any_of(state.weight != 0) else "released"


def warn_not_finite(bad: int, so_far: int) -> None:
    """Say that measurements were skipped, or an update."""
    _warn(
        f"ALMConstraint.step: {bad} measurement(s) or update(s) of this step are not finite; "
        f"skipped ({so_far} so far), the multiplier stays. Is the loss unbounded, or mu too large?"
    )


def refuse(found: Mean, state: State, settings: Settings) -> None:
    """Raise for a step that the policy does not skip."""
    if bad := found.bad + state.preview(found, settings).overflows:
        raise FloatingPointError(
            f"ALMConstraint.step: {bad} measurement(s) or update(s) of this step are not finite "
            "and would have made the multiplier so for ever. Is the loss unbounded, or mu too "
            "large?"
        )


def warn_never_stepped(count: int, multiplier: Number) -> None:
    """Say that measurements pile up, and nobody steps the constraint."""
    _warn(
        f"ALMConstraint: {count} measurements wait for a step. lambda is still "
        f"{numbers.largest(multiplier):g}. Did you mean `constraint.step()` after each "
        "`optimizer.step()`, or `constraint.attach(optimizer)` before the loop?",
        depth=5,
    )


def _warn(text: str, depth: int = 4) -> None:
    """Point at the line of the loop, `depth` calls up."""
    warnings.warn(text, stacklevel=depth)
