"""The gate between the sides of a `DualOptimizer`."""

from typing import Any

from torch_alm._constraint.numbers import Number
from torch_alm.constraint import ALMConstraint


class Gate:
    """lambda+ of one step, decided once; and whether a released constraint is worth measuring.

    Attributes:
        idle: steps since the released constraint was measured; `None` while it is not released.
        released_at: the constraint and its settings at that measurement.
        measures: whether the step that was begun measures, in all of its micro-batches.
        is_decided: whether its latest backward was said to be the last.
        is_skipped: whether that left its gradient out, for lambda+ was 0.
        can_pause: whether mu was above 0 when the step began: "auto" has none before a gradient.
        multiplier: lambda before the latest step.
    """

    def __init__(self) -> None:
        self.idle: int | None = None
        self.released_at: list[Any] = []
        self.measures, self.is_decided, self.is_skipped, self.can_pause = True, False, False, True
        self.multiplier: Number = 0.0

    def begin(self, constraint: ALMConstraint | None, probe_every: int) -> None:
        """Begin a step; a pause ends if what was measured is not the constraint of now."""
        if self.idle is not None and list_settings(constraint) != self.released_at:
            self.idle = None
        self.measures = self.idle is None or self.idle + 1 >= probe_every
        self.is_decided = self.is_skipped = False
        self.can_pause = probe_every > 1 and constraint is not None and float(constraint.mu) > 0

    def commit(self, constraint: ALMConstraint | None) -> float:
        """lambda <- lambda+ of the step that was begun; returns it, 0 if nothing was measured."""
        if not self.measures:
            self.idle = (self.idle or 0) + 1
            return 0.0
        if constraint is None:
            return 1.0
        if self.is_skipped and float(constraint.preview()) != 0:
            constraint.discard()
            raise RuntimeError(
                "DualOptimizer.step: lambda+ was 0 in `backward(last=True)`, which skipped the "
                "forget gradient, and is not 0 any more. Were alpha, mu or lambda assigned in "
                "between? Assign them before the step; this one can be begun again (`zero_grad()`)."
            )
        self.multiplier = constraint.multiplier
        weight = float(constraint.step())
        is_released = weight == 0 and self.can_pause and float(constraint.multiplier) == 0
        self.idle, self.released_at = (0, list_settings(constraint)) if is_released else (None, [])
        return weight

    def state(self) -> dict[str, Any]:
        """Collect what a resumed run needs."""
        return {"idle": self.idle, "known": self.released_at[1:]}

    def load(self, state: dict[str, Any], constraint: ALMConstraint | None) -> None:
        """Restore `state()`; a checkpoint without it measures at once."""
        self.idle, self.released_at = state.get("idle"), [constraint, *state.get("known", [])]


def list_settings(constraint: ALMConstraint | None) -> list[Any]:
    """List a constraint and the settings without which it would not have been released."""
    if constraint is None:
        return []
    numbers = map(float, (constraint.alpha, constraint.mu, constraint.multiplier))
    return [constraint, *numbers, constraint.sense, constraint.steps]
