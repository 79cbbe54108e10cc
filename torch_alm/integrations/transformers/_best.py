"""Choose the best checkpoint among those that meet the constraint, and warn if none does."""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from transformers import TrainerState, TrainingArguments

MET = ("released", "satisfied", "never_active")


def wants_best(args: TrainingArguments) -> bool:
    """Return whether a metric chooses a best checkpoint."""
    return args.load_best_model_at_end or args.save_strategy == "best"


def choose_where(trainer: Any, is_met: Callable[[Mapping[str, float]], bool]) -> None:
    """Let a Trainer choose its best checkpoint among evaluations that meet something.

    Of another the metric that chooses becomes infinitely bad. Callbacks and schedules have read it
    by then, as it is.
    """
    evaluate, args = trainer._evaluate, trainer.args

    def update_best(*given: Any, **how: Any) -> dict[str, float]:
        metrics = evaluate(*given, **how)
        name = f"eval_{(args.metric_for_best_model or '').removeprefix('eval_')}"
        if wants_best(args) and name in metrics and not is_met(metrics):
            return {**metrics, name: -math.inf if args.greater_is_better else math.inf}
        return metrics

    trainer._evaluate = update_best


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


def warn_ended(owner: object, args: TrainingArguments, optimizer: Any, constraint: Any) -> None:
    """Warn if the schedule has come to 0 and the constraint is not met."""
    rate = max(float(group["lr"]) for group in optimizer.param_groups)
    missed = constraint.metrics()["status"] in ("violated", "capped", "suspected_infeasible")
    if missed and rate < args.learning_rate / 1000:
        name = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
        warnings.warn(
            f'{type(owner).__name__}: `lr_scheduler_type="{name}"` came to 0 before the constraint '
            'was met, so that its last steps moved nothing. Did you mean "constant", and '
            "`StopOnStatus`, which ends the run?",
            stacklevel=3,
        )
