"""What a constraint says about itself, from numbers that lie on the host."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from torch_alm._control import numbers, residuals
from torch_alm._control.controller import Controller
from torch_alm._control.terms import Terms, is_equality, is_met_everywhere

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


def metrics(state: Controller, terms: Terms) -> dict[str, Any]:
    """See `ALMConstraint.metrics`."""
    equality, record = is_equality(terms), state.record
    c, weight = state.violation, state.weight
    feasibility = residuals.feasibility(c, is_equality=equality)
    complementarity = residuals.complementarity(c, weight, is_equality=equality)
    return {
        "value": numbers.average(state.value),
        "violation": numbers.average(c),
        "multiplier": numbers.average(state.multiplier),
        "weight": numbers.average(weight),
        "active_share": record.active_steps / max(record.steps, 1),
        "overshoot": numbers.largest(record.overshoot),
        "kkt_feasibility": numbers.largest(feasibility),
        "kkt_complementarity": numbers.largest(complementarity),
        "mu": terms.mu,
        "skipped": record.skipped,
        "steps": record.steps,
        "status": status(state, terms),
    }


def with_stationarity(
    found: dict[str, Any], gradient: Iterable[Tensor | None] | None
) -> dict[str, Any]:
    """The same and, if the Lagrangian's gradient is given, its norm."""
    if gradient is None:
        return found
    return {**found, "kkt_stationarity": residuals.stationarity(gradient)}


def status(state: Controller, terms: Terms) -> str:
    """One word for the state after a step."""
    if state.record.is_blind:
        return "non_finite"
    if not state.is_measured:
        return "unmeasured"
    if is_met_everywhere(terms, state.violation):
        return "satisfied" if numbers.any_of(state.weight != 0) else "released"
    if state.is_capped(terms):
        return "capped"
    return "suspected_infeasible" if state.record.stall.is_stalled else "violated"
