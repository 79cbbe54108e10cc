"""The best step, and the best checkpoint, is one that meets the constraint."""

import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, final

from torch import Tensor, distributed
from transformers import TrainerState, TrainingArguments

MET = ("released", "satisfied")


class Best(NamedTuple):
    """The step that a `BestStep` has kept."""

    step: int  # from 1
    objective: float  # the mean over ranks
    metrics: dict[str, Any]  # of the constraint, or group, at that step


@final
class BestStep:
    """Find the step with the lowest objective among those that met a constraint, or a group.

    It is told the metrics of either, after its `step()`. Those are of the weights that the value
    was measured at: to save these, step the constraint before the optimizer. Of steps that are
    equally good the first stays; never the best is a step whose objective is not finite, or that
    did not measure all members. Where alpha changes, what was best for another one is forgotten.

    Attributes:
        best: the best step so far, a `Best`; `None` before the first.

    Cost: one synchronisation with the device, and with all ranks (which then all have to call it).

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

    def update(self, objective: float | Tensor, metrics: Mapping[str, Any]) -> bool:
        """Take in a step; tell whether it is the best so far.

        Args:
            objective: what is minimised, such as the retain loss.
            metrics: `metrics()` of the constraint or group, after its step.
        """
        new = Best(metrics["steps"], _over_ranks(float(objective)), dict(metrics))
        told, self._told = self._told, _each("steps", metrics)
        is_new = all(told.get(name) != steps for name, steps in self._told.items())
        if self.best is not None and _each("alpha", self.best.metrics) != _each("alpha", metrics):
            self.best = None
        least = math.inf if self.best is None else self.best.objective
        is_met = is_new and metrics["status"] in MET
        if not (is_met and -math.inf < new.objective < least):
            return False
        self.best = new
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs; loads with `weights_only=True`."""
        return {"best": None if self.best is None else [*self.best], "told": self._told}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict()`."""
        best, self._told = state_dict["best"], state_dict["told"]
        self.best = None if best is None else Best(*best)


def _each(key: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A metric of a constraint, or of every member of a group and of the group itself."""
    return {name: value for name, value in metrics.items() if name.rpartition("/")[2] == key}


def _over_ranks(objective: float) -> float:
    if not distributed.is_available() or not distributed.is_initialized():
        return objective
    each: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(each, objective)
    return sum(each) / len(each)


def disqualify(metrics: Mapping[str, float], args: TrainingArguments) -> dict[str, float]:
    """Make the metric that chooses the best checkpoint infinitely bad."""
    name = args.metric_for_best_model
    if name is None or not chooses_best(args):
        return dict(metrics)
    name = name if name.startswith("eval_") else f"eval_{name}"
    worst = -math.inf if args.greater_is_better else math.inf
    return {**metrics, **({name: worst} if name in metrics else {})}


def chooses_best(args: TrainingArguments) -> bool:
    """Tell whether the metric chooses a checkpoint, and is not only read by a schedule."""
    return args.load_best_model_at_end or args.save_strategy == "best"


def forget_disqualified(state: TrainerState) -> None:
    """Unmake a best checkpoint whose metric is infinitely bad.

    Before 4.47 the Trainer takes the first evaluation for the best, whatever it comes to.
    """
    if state.best_metric is not None and math.isinf(state.best_metric):
        state.best_metric = state.best_model_checkpoint = None


def warn_none_met(owner: object, args: TrainingArguments, state: TrainerState) -> None:
    """Warn if no checkpoint met the constraint and the best was wanted."""
    if args.load_best_model_at_end and state.best_model_checkpoint is None:
        warnings.warn(
            f"{type(owner).__name__}: no evaluation met the constraint, so there is no best "
            "checkpoint, and the model has the weights of the last step. Is alpha out of reach, or "
            "the run too short?",
            stacklevel=3,
        )
