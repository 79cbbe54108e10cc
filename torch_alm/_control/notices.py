"""What a constraint says aloud while it runs."""

import warnings

from torch_alm._control import numbers
from torch_alm._control.numbers import Number
from torch_alm._control.terms import Terms
from torch_alm._control.waiting import MOVES, PILE


def not_finite(bad: int, so_far: int) -> None:
    """Measurements were skipped."""
    _warn(
        f"ALMConstraint.step: {bad} measurement(s) of this step are not finite; skipped "
        f"({so_far} so far), the multiplier does not see them. Is the loss unbounded?"
    )


def refuse_not_finite(bad: int) -> None:
    """Measurements that the policy does not skip."""
    raise FloatingPointError(
        f"ALMConstraint.step: {bad} measurement(s) of this step are not finite and would "
        "have made the multiplier so for ever. Is the loss unbounded?"
    )


def overflowed(multiplier: Number, c: Number, terms: Terms, so_far: int) -> None:
    """An update that would have made the multiplier infinite was left out."""
    _warn(f"{_overflow(multiplier, c, terms)}; the update is left out ({so_far} so far). {_CAUSE}")


def refuse_overflow(multiplier: Number, c: Number, terms: Terms) -> None:
    """An update that the policy does not leave out."""
    raise FloatingPointError(
        f"{_overflow(multiplier, c, terms)} and would have stayed so for ever. {_CAUSE}"
    )


_CAUSE = "Is mu too large, or the measure unbounded?"


def _overflow(multiplier: Number, c: Number, terms: Terms) -> str:
    return (
        f"ALMConstraint.step: lambda + mu c is not finite, with lambda up to "
        f"{numbers.largest(multiplier):g}, mu = {terms.mu:g} and a violation up to "
        f"{numbers.largest(abs(c)):g}"
    )


def never_stepped(count: int, owner: str, multiplier: Number) -> None:
    """Measurements pile up while theta moves on, and nobody steps the constraint."""
    found = (
        f"{count} measurements wait for a step"
        if count >= PILE
        else f"theta has moved on {MOVES} times, and the measurements wait for a step"
    )
    if owner:
        _warn(
            f"ALMConstraint is attached to {owner}, whose `step()` was never called: {found}. "
            f"lambda is still {numbers.largest(multiplier):g}. Did you mean the optimizer inside "
            "it, the one that `second_step()` and the like call, or `constraint.step()` yourself?",
            depth=5,
        )
        return
    _warn(
        f"ALMConstraint: {found}. lambda is still {numbers.largest(multiplier):g}. Did you mean "
        "`constraint.step()` after each `optimizer.step()`, or `constraint.attach(optimizer)` "
        "before the loop?",
        depth=5,
    )


def never_measured(owner: str, multiplier: Number) -> None:
    """The attached optimizer steps, and there is nothing to step the constraint with."""
    _warn(
        f"ALMConstraint is attached to {owner}, which has taken {MOVES} steps with nothing "
        f"measured; lambda is still {numbers.largest(multiplier):g}. Did you mean to call "
        "`constraint(...)` or `constraint.observe(value)` in the loop?"
    )


def capped(limit: float, c: Number) -> None:
    """The stored multiplier has reached its limit."""
    _warn(
        f"ALMConstraint.step: the stored multiplier has reached max_multiplier={limit:g} at a "
        f"violation of {numbers.largest(c):g} and grows no further. Can the constraint be met, or "
        "is the limit too low?",
        depth=7,
    )


def cannot_unwind(multiplier: Number, c: Number, terms: Terms) -> None:
    """Warn if a whole run of violations like this one could not bring lambda to zero."""
    if terms.total_steps is None or terms.sense == "==" or terms.release is not None:
        return
    moves = max(terms.total_steps - terms.warmup, 0) // terms.every
    reach = moves * terms.mu * abs(c)
    if not numbers.any_of(reach < multiplier):
        return
    _warn(
        f"ALMConstraint: in total_steps={terms.total_steps} the multiplier moves {moves} times, "
        f"each time by mu times the violation, {terms.mu:g} x {numbers.largest(abs(c)):g} now: by "
        f"{numbers.largest(reach):g} in all. It starts at {numbers.largest(multiplier):g}, so the "
        "gate would stay open to the end. Did you mean a larger mu, or a multiplier that starts at "
        "0?"
    )


def _warn(text: str, depth: int = 6) -> None:
    """Point at the line that called the constraint, `depth` calls up: by default its `step`."""
    warnings.warn(text, stacklevel=depth)
