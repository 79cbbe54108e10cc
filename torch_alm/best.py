"""BestStep: which step of a run is worth keeping."""

from collections.abc import Mapping
from typing import Any, NamedTuple, final

from torch_alm._constraint.numbers import Numeric, single
from torch_alm._constraint.observations import mean_of_numbers


class Best(NamedTuple):
    """The step that a `BestStep` has kept.

    Attributes:
        step: its number, from 1.
        objective: what was minimised, the mean over ranks.
        metrics: those of the constraint, or group, at that step.
    """

    step: int
    objective: float
    metrics: dict[str, Any]


@final
class BestStep:
    """Find the step with the lowest objective among those that met a constraint, or a group.

    It is told the metrics of either, after its `step()`. Those are of the weights that the value
    was measured at: to save these, step the constraint before the optimizer. Of steps that are
    equally good the first stays; an objective that is not finite is never the best, nor is a step
    that did not measure (see `DualOptimizer`), of which nobody knows whether it met; of a group all
    members have to measure. Where alpha changes, what was best for another one is forgotten.

    Attributes:
        best: the best step so far, a `Best`; `None` before the first.

    Cost: one device synchronisation for an objective on a device, and a reduction over ranks if
    `torch.distributed` is initialised (then all ranks have to call it, and all agree).

    Example:
        >>> from torch_alm import ALMConstraint
        >>> constraint, best = ALMConstraint(None, alpha=1.0, mu=0.5), BestStep()
        >>> for value, loss in ((0.5, 0.1), (1.2, 0.9), (1.1, 0.4), (1.3, 0.6)):
        ...     constraint.observe(value)
        ...     _ = constraint.step()
        ...     if best.update(loss, constraint.metrics()):
        ...         pass  # save the weights here
        >>> best.best.step, best.best.objective, best.best.metrics["value"]
        (3, 0.4, 1.1)
    """

    def __init__(self) -> None:
        self.best: Best | None = None
        self._told: dict[str, Any] = {}  # measured steps of the constraints, the last time

    def update(self, objective: Numeric, metrics: Mapping[str, Any]) -> bool:
        """Take in a step; tell whether it is the best so far.

        Args:
            objective: what is minimised, such as the retain loss.
            metrics: `metrics()` of the constraint or group, after its step.
        """
        new = Best(metrics["steps"], mean_of_numbers(single(objective)), dict(metrics))
        told, self._told = self._told, _each("steps", metrics)
        is_new = all(told.get(name) != steps for name, steps in self._told.items())
        is_met = is_new and metrics["status"] in ("satisfied", "released")
        if self.best is not None and _each("alpha", self.best.metrics) != _each("alpha", metrics):
            self.best = None
        least = float("inf") if self.best is None else self.best.objective
        if not (is_met and -float("inf") < new.objective < least):
            return False
        self.best = new
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs; loads with `weights_only=True`."""
        return {"best": None if self.best is None else [*self.best], "told": self._told}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict()`."""
        best = state_dict["best"]
        self.best = None if best is None else Best(*best)
        self._told = state_dict["told"]


def _each(key: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return a metric of a constraint, or of every member of a group and of the group itself."""
    return {name: value for name, value in metrics.items() if name.rpartition("/")[2] == key}
