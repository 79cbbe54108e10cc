"""Callbacks that end a training: it is forgotten, or it costs too much."""

import math
from typing import Any, TypeAlias, cast

from transformers import TrainerCallback, TrainerControl, TrainerState

from torch_alm.constraint import ALMConstraint
from torch_alm.group import ConstraintGroup

Constraint: TypeAlias = ALMConstraint | ConstraintGroup


def stop_in_a_row(
    state: TrainerState, control: TrainerControl, name: str, *, times: int, happened: bool
) -> None:
    """Count in a row, in `trainer_state.json`, so that the count survives a resume; then stop."""
    counts = cast(dict[str, Any], state.stateful_callbacks)
    counts[name] = counts.get(name, 0) + 1 if happened else 0
    if counts[name] >= times:
        control.should_training_stop = True


class StopOnStatus(TrainerCallback):
    """A callback that ends the training once a constraint has a status, by default `released`.

    Released means met, with a multiplier of 0: nothing pushes any more, and a longer run would only
    train the retain side. One batch may meet a constraint by luck; ask for several steps in a row,
    or give the constraint a filter (`torch_alm.filters.Mean`). A step that does not measure
    (`probe_every` of `SAULTrainer`) does not count.

    Args:
        constraint: that of the trainer.
        status: one of those of `ALMConstraint.metrics`.
        times: measured steps in a row.

    Example:
        >>> from torch_alm.filters import Mean
        >>> constraint = ALMConstraint(None, alpha=2.0, mu=0.1, filter=Mean(window=8))
        >>> stop = StopOnStatus(constraint, times=5)  # Trainer(callbacks=[stop])
    """

    def __init__(self, constraint: Constraint, status: str = "released", *, times: int = 1) -> None:
        self.constraint, self.status, self.times = constraint, status, times
        self._key = f"StopOnStatus {name_of(constraint)} {status} {times}"

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """After the multiplier's update."""
        metrics, name = self.constraint.metrics(), f"torch_alm.{self._key}"
        counts = cast(dict[str, Any], state.stateful_callbacks)
        told, counts[f"{name} told"] = counts.get(f"{name} told"), metrics["steps"]
        if metrics["steps"] != told:
            happened = metrics["status"] == self.status
            stop_in_a_row(state, control, name, times=self.times, happened=happened)


class StopOnMetric(TrainerCallback):
    """A callback that ends the training once a logged number has left its bounds.

    Args:
        metric: as it is logged: `"eval_retain_loss"`, `"retain_loss"`, `"constraint/value"`.
        above: stop where it is larger than this.
        below: stop where it is smaller than this.
        times: in so many logs in a row that have it.

    Example:
        >>> stop = StopOnMetric("eval_retain_loss", above=1.5)
    """

    def __init__(
        self, metric: str, *, above: float = math.inf, below: float = -math.inf, times: int = 1
    ) -> None:
        if above == math.inf and below == -math.inf:
            raise ValueError(
                f"StopOnMetric: {metric!r} has no bound, so it would never stop. Did you mean "
                "`above=...` or `below=...`?"
            )
        self.metric, self.above, self.below, self.times = metric, above, below, times

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **_: Any
    ) -> None:
        """Evaluations are logged, too."""
        found = (logs or {}).get(self.metric)
        if found is not None:
            name = f"torch_alm.StopOnMetric {self.metric} {self.above} {self.below} {self.times}"
            happened = found > self.above or found < self.below
            stop_in_a_row(state, control, name, times=self.times, happened=happened)


def name_of(constraint: ALMConstraint | ConstraintGroup) -> str:
    """Name a constraint by what it asks for, the same after a resume."""
    if isinstance(constraint, ConstraintGroup):
        return ", ".join(f"{key}: {name_of(member)}" for key, member in constraint.items())
    measure = getattr(constraint.measure, "__qualname__", "value")
    return f"{measure} {constraint.sense} {constraint.alpha}"
