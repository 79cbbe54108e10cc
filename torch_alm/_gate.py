"""When the forget side is measured, and with which weight it acts."""

from typing import Any

from torch import Tensor

from torch_alm.constraint import ALMConstraint


class Gate:
    """lambda+ of one step, decided once; and whether a released constraint is worth measuring.

    Args:
        probe_every: while the gate is closed and lambda is 0, the forget side is measured on every
            `probe_every`-th step only.

    Attributes:
        idle: steps since the released constraint was measured; `None` while it is not released.
    """

    def __init__(self, probe_every: int) -> None:
        """Start unreleased."""
        self.probe_every = probe_every
        self.idle: int | None = None
        self._measures: bool | None = None
        self._is_decided = False

    def measures(self) -> bool:
        """Whether this step measures; the same answer for all its micro-batches."""
        if self._measures is None:
            self._measures = self.idle is None or self.idle + 1 >= self.probe_every
        return self._measures

    def is_decided(self) -> bool:
        """Whether this step can take no further measurement."""
        return self._is_decided

    def decide(self, constraint: ALMConstraint) -> bool:
        """Whether the gate will be open, all of the step having been observed."""
        self._is_decided = True
        return scalar(constraint.preview()) != 0

    def undo(self) -> None:
        """Forget this step's decisions."""
        self._measures, self._is_decided = None, False

    def commit(self, constraint: ALMConstraint | None) -> float:
        """The step's weight, and the end of the step."""
        if not self.measures():
            self.idle = (self.idle or 0) + 1
            self.undo()
            return 0.0
        self.undo()
        if constraint is None:
            return 1.0
        weight = scalar(constraint.step())
        self.idle = 0 if weight == 0 and scalar(constraint.multiplier) == 0 else None
        return weight

    def state(self) -> dict[str, Any]:
        """What a resumed run needs; nothing where every step measures."""
        return {} if self.probe_every == 1 else {"idle": self.idle}

    def load(self, state: dict[str, Any]) -> None:
        """Restore `state()`; a checkpoint without it measures at once."""
        self.undo()
        self.idle = state.get("idle")


def scalar(weight: float | Tensor) -> float:
    """The one multiplier, or a `ValueError`."""
    if isinstance(weight, Tensor):
        raise ValueError(
            f"DualOptimizer.step: the constraint has {weight.numel()} multipliers and the forget "
            "side one gradient, so no single weight is right. Did you mean a scalar measure, or "
            "`constraint(...)` inside the retain objective of one optimizer?"
        )
    return weight
