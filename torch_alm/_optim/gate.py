"""The gate of the forget side: lambda+ of a step, and which steps measure at all."""

# pyright: reportPrivateUsage=false

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from torch import Tensor
from torch.optim import Optimizer

from torch_alm._optim.forecast import Forecast
from torch_alm._optim.objective import ObjectiveOptimizer

if TYPE_CHECKING:
    from torch_alm.constraint import ALMConstraint

Cadence: TypeAlias = int | Literal["auto"]
Foretell: TypeAlias = Callable[["ALMConstraint"], Callable[[float], float]]


class Gate:
    """lambda+ of one step, decided once; and whether a released constraint is worth measuring.

    Args:
        probe_every: while the gate is closed and lambda is 0, the forget side is measured on every
            `probe_every`-th step only, or when the forecast says.

    Attributes:
        radii: of the forget side and its groups, in the step that was begun.
        idle: steps since the released constraint was measured; `None` while it is not released.
        known: what that measurement is about, see `about`.
        within: its radii.
        forecast: of the released constraint.
        measures: whether the step that was begun measures, in all of its micro-batches.
        is_decided: whether its latest backward was said to be the last.
        batches: micro-batches of it so far.
        looks: whether SAM's first pass is to be asked if it measures.
        clean: what that pass saw.
        slack: what that was from a violation, where it was asked.
        looked: whether nothing more was asked.
    """

    def __init__(self, probe_every: Cadence) -> None:
        self.probe_every: Cadence = probe_every
        self.radii: list[Any] = []
        self.idle: int | None = None
        self.known: list[Any] = []
        self.within: list[Any] = []
        self.forecast = Forecast()
        self.measures, self.is_decided = True, False
        self.batches, self.looks = 0, False
        self.clean: Tensor | None = None
        self.slack, self.looked = math.nan, False

    def begin(
        self,
        constraint: "ALMConstraint | None",
        weight: float = 1.0,
        forget: Optimizer | None = None,
        *,
        last: bool = False,
    ) -> None:
        """Begin a step; a pause ends if what was measured is another constraint, or nearer.

        What one of several micro-batches sees says too little for a look. It takes one that is said
        to be the last; or one of weight 1 after a step that had one, if that was not said then.
        """
        if forget is not None:
            own = getattr(forget, "rho", 0.0)
            self.radii = [own, *(group.get("rho", own) for group in forget.param_groups)]
        if self.idle is not None and (about(constraint) != self.known or self._is_wider()):
            self.idle = None
        every = self.forecast.interval if self.probe_every == "auto" else self.probe_every
        self.measures = self.idle is None or self.idle + 1 >= every
        is_told = self.idle is not None and constraint is not None and constraint.filter is None
        is_forecast = self.probe_every == "auto" and self.forecast.drop == self.forecast.drop
        is_alone = self.batches == 1 and not self.is_decided and weight == 1.0
        self.looks = is_told and is_forecast and (last or is_alone)
        self.batches, self.clean, self.slack, self.looked = 0, None, math.nan, False

    def _is_wider(self) -> bool:
        """Tell whether the forget side looks further away than it did in the last measurement.

        Where it looks less far, which many schedules let it do at every step, it finds less.
        """
        is_other = len(self.radii) != len(self.within)
        return is_other or any(new > old for new, old in zip(self.radii, self.within, strict=True))

    def goes_on(self, constraint: "ALMConstraint", value: Tensor) -> bool:
        """Tell, in SAM's first pass, whether the perturbed one could find the gate open.

        If not, the step does not measure.

        Cost: a device synchronisation where it looks.
        """
        looks, self.looks = self.looks, False
        if not looks:
            return True
        self.slack = constraint._slack_at(value)
        self.looked = self.forecast.is_far(self.slack, (self.idle or 0) + 1)
        self.measures = not self.looked
        return self.measures

    def opens(self, constraint: "ALMConstraint", weight: float, value: Tensor) -> bool:
        """Take in a step's last value; tell whether its gate is open."""
        constraint.observe(value, weight=weight)
        return scalar(constraint.preview()) != 0

    def commit(self, constraint: "ALMConstraint | None", foretell: Foretell) -> float:
        """Return the weight of the step that was begun.

        Args:
            constraint: the one to step.
            foretell: tells one that finds its mu what the step does; returns how to aim.
        """
        weight, aim = 1.0 if constraint is None else 0.0, float
        if not self.measures:
            self.idle, weight = (self.idle or 0) + 1, 0.0
            if self.looked:
                self.forecast.look(self.slack, self.idle)
                self.idle = 0
        elif constraint is not None:
            aim = float if constraint._state.auto is None else foretell(constraint)
            weight = scalar(constraint.step())
            if weight == 0 and scalar(constraint.multiplier) == 0:
                gap, self.idle = None if self.idle is None else self.idle + 1, 0
                self.forecast.update(constraint._slack, gap, self._drop(constraint))
                self.known, self.within = about(constraint), self.radii
            else:
                self.idle = None
        return aim(weight)

    def _drop(self, constraint: "ALMConstraint") -> float:
        """Return how much of the slack at theta the perturbation has taken; `nan` if not known."""
        of_one = self.batches == 1 and constraint.filter is None
        if self.clean is None or self.probe_every != "auto" or not of_one:
            return math.nan
        is_read = self.slack == self.slack
        return (self.slack if is_read else constraint._slack_at(self.clean)) - constraint._slack

    def state(self) -> dict[str, Any]:
        """Collect what a resumed run needs; nothing where every step measures."""
        if self.probe_every == 1:
            return {}
        batches = 0 if self.is_decided else self.batches
        known, within = [*self.known], [*self.within]
        found = {"idle": self.idle, "known": known, "within": within, "batches": batches}
        return {**found, **({} if self.probe_every != "auto" else vars(self.forecast))}

    def load(self, state: dict[str, Any]) -> None:
        """Restore `state()`; a checkpoint without it measures at once."""
        self.idle, self.known = state.get("idle"), state.get("known", [])
        self.within = state.get("within", [])
        self.batches, self.is_decided = state.get("batches", 0), False
        self.forecast = Forecast()
        vars(self.forecast).update({n: state[n] for n in vars(self.forecast) if n in state})


def about(constraint: "ALMConstraint | None") -> list[Any]:
    """Collect what makes a released constraint another one, or one that is not released."""
    if constraint is None:
        return []
    alpha, multiplier = scalar(constraint.alpha), scalar(constraint.multiplier)
    return [alpha, constraint.sense, multiplier, constraint._state.history.steps]


def scalar(weight: float | Tensor) -> float:
    """Return the one multiplier, or raise a `ValueError`."""
    if isinstance(weight, Tensor):
        raise ValueError(
            f"DualOptimizer.step: the constraint has {weight.numel()} multipliers and the forget "
            "side one gradient, so no single weight is right. Did you mean a scalar measure, or "
            "`constraint(...)` inside the retain objective of one optimizer?"
        )
    return weight


def check_sense(constraint: "ALMConstraint | None", forget: Optimizer) -> None:
    """Raise if it is none, or the forget side looks where it is easiest to meet."""
    if constraint is not None and not hasattr(constraint, "sense"):
        raise TypeError(
            f"DualOptimizer: the constraint is {type(constraint).__name__}, which has no one "
            "multiplier to weigh the forget gradient with. Did you mean one `ALMConstraint`? (A "
            "group acts in the loss: `retain=lambda: loss() + group(...)`.)"
        )
    sense = ">=" if constraint is None else constraint.sense
    fitting = {">=": -1, "<=": +1, "==": 0}[sense]
    if isinstance(forget, ObjectiveOptimizer) and forget.sign != fitting:
        side = {-1: "ReverseSAM or a plain optimizer", +1: "SAM or a plain optimizer"}
        raise ValueError(
            f'DualOptimizer: the constraint\'s sense is "{sense}" and the forget side is '
            f"{type(forget).__name__}, which would look where the constraint is easiest "
            f"to meet. Did you mean {side.get(fitting, 'a plain optimizer')}?"
        )
