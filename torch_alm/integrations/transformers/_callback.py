"""ConstraintCallback: a constraint in the loss of any Trainer, without a class of its own."""

import copy
import math
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments

from torch_alm.constraint import ALMConstraint
from torch_alm.group import ConstraintGroup
from torch_alm.integrations.transformers._pairs import PairedDataset

Logs = dict[str, float]
LOGGED = ("value", "violation", "multiplier", "weight")
MET = ("released", "satisfied", "never_active")
MISSED = ("violated", "capped", "suspected_infeasible")


class LoggingCallback(TrainerCallback):
    """A callback that logs a constraint's metrics, and sets the epoch of pairs.

    It also keeps steps that missed the constraint from being the best checkpoint of its Trainer.
    """

    _trainer: Trainer | None = None

    def __init__(
        self, constraint: ALMConstraint | ConstraintGroup, name: str = "constraint"
    ) -> None:
        if not isinstance(constraint, ALMConstraint | ConstraintGroup):  # pyright: ignore[reportUnnecessaryIsInstance]
            fix = "Did you mean `ALMConstraint(token_nll, alpha=4.0, mu=0.01)`?"
            raise TypeError(f"`constraint` is {constraint!r}: nothing says where to stop. {fix}")
        self.constraint, self.name, self._key = constraint, name, f"torch_alm.{name}"
        self._untrained: dict[str, Any] | None = None
        self._model: weakref.ref[Any] | None = None

    def on_train_begin(
        self, args: Any, state: TrainerState, *_: Any, model: Any = None, **__: Any
    ) -> None:
        """Begin anew with another model, which `model_init` makes for every training."""
        if self._untrained is None:
            self._untrained = copy.deepcopy(self.constraint.state_dict())
        elif self._model is not None and self._model() is not model and not state.global_step:
            self.constraint.load_state_dict(self._untrained)
        self._model = None if model is None else weakref.ref(model)

    def add_to(self, trainer: Trainer) -> None:
        """Put it before a Trainer's other callbacks, and let it choose the best checkpoint."""
        others = [c for c in trainer.callback_handler.callbacks if c is not self]
        trainer.callback_handler.callbacks = [self, *others]
        if self._trainer is not trainer:
            is_its_own = getattr(trainer, "constraint", None) is self.constraint
            judge: Any = trainer if is_its_own and hasattr(trainer, "_is_met") else self
            choose_where(trainer, judge._is_met)
        self._trainer = trainer

    def _is_met(self, _: Mapping[str, float]) -> bool:
        return self.constraint.metrics()["status"] in MET

    def on_epoch_begin(
        self, args: Any, state: TrainerState, *_: Any, train_dataloader: Any = None, **__: Any
    ) -> None:
        """Set the epoch of pairs: accelerate does not with several ranks, nor after a resume."""
        dataset = getattr(train_dataloader, "dataset", None)
        if isinstance(dataset, PairedDataset):
            dataset.set_epoch(int(state.epoch or 0))

    def on_log(
        self, args: Any, state: TrainerState, *_: Any, logs: Logs | None = None, **__: Any
    ) -> None:
        """Log numbers, for TensorBoard and others; the status goes to `trainer_state.json` only."""
        if logs is None or "loss" not in logs:
            return
        added, words = dict[str, float](), dict[str, Any]()
        for key, value in self.constraint.metrics().items():  # in a group, "member/value"
            before, last = key[: key.rfind("/") + 1], key.rpartition("/")[2]
            if last in LOGGED:
                added[f"{self.name}/{key}"] = value
            if last == "weight":
                added[f"{self.name}/{before}gate"] = float(value != 0)
            if last == "status":
                words[f"{self.name}/{key}"] = value
        logs.update(added)
        state.log_history[-1].update({**added, **words})

    def on_train_end(
        self, args: Any, state: TrainerState, *_: Any, optimizer: Any = None, **__: Any
    ) -> None:
        """Warn if no checkpoint met the constraint, or the schedule came to 0 before it was met."""
        owner = type(self._trainer or self).__name__
        if args.load_best_model_at_end and state.best_model_checkpoint is None:
            warnings.warn(
                f"{owner}: no evaluation met the constraint, so there is no best checkpoint, "
                "and the model has the weights of the last step. Is alpha out of reach, or the run "
                "too short?",
                stacklevel=2,
            )
        rate = max(float(group["lr"]) for group in optimizer.param_groups)
        missed = self.constraint.metrics()["status"] in MISSED
        if missed and rate < args.learning_rate / 1000:
            name = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
            warnings.warn(
                f'{owner}: `lr_scheduler_type="{name}"` came to 0 before the constraint was '
                'met, so that its last steps moved nothing. Did you mean "constant", and '
                "`StopOnStatus`, which ends the run?",
                stacklevel=2,
            )


class ConstraintCallback(LoggingCallback):
    """A constraint in a `compute_loss` of your own, for any Trainer of transformers.

    The loss calls it, `loss + constraint(model, batch)`, or observes and scales with its weight,
    `constraint.observe(value); weight = constraint.preview()`. The rest is here: one update of the
    multiplier per optimizer step, from all its micro-batches and ranks, none for a step that a
    GradScaler skips; logs as in `ALMTrainer`; the state saved and restored with the Trainer's own,
    in `trainer_state.json` (also with `save_only_model=True`); the epoch of a `PairedDataset` set;
    what an evaluation measures is discarded. A training of another model begins anew.

    Where a best checkpoint is asked for, only steps that met the constraint may have it. That takes
    `callback.add_to(trainer)`; schedules and other callbacks read every metric as it is.

    A loss that counts all micro-batches itself (one that divides by `num_items_in_batch`) is not
    divided by their number, nor is a penalty in it: divide that by
    `args.gradient_accumulation_steps`.

    Args:
        constraint: the one that the loss calls.
        name: of the entries in logs and state; every constraint of a Trainer needs its own.

    Raises:
        ValueError: in `train`, for a checkpoint without its state, for two of the same name, or
            where a best checkpoint is asked for and the Trainer is not known.
        RuntimeError: in `train`, if a step measured nothing.

    Warns:
        UserWarning: under NEFTune, whose noise the loss measures as forgetting.

    Example:
        >>> from torch_alm import ALMConstraint
        >>> constraint = ALMConstraint(None, alpha=2.0, mu=0.1)
        >>> callback = ConstraintCallback(constraint)

    Pass it as `Trainer(..., callbacks=[callback])`; by `callback.add_to(trainer)` its entries reach
    TensorBoard and the like, too, to which the Trainer reports before it calls what it was given.
    """

    _attachment: Any = None
    _written: Any = None
    _steps, _scale = 0, 1.0

    def on_train_begin(
        self, args: Any, state: TrainerState, *_: Any, optimizer: Any = None, **given: Any
    ) -> None:
        """Restore the constraint of a resumed run; by then the Trainer has read its state.

        A constraint that finds its mu is attached to the optimizer, which it has to read.
        """
        if wants_best(args) and self._trainer is None:
            raise ValueError(
                "ConstraintCallback: a best checkpoint is asked for, and one of a step that missed "
                "the goal could be chosen, since a callback never sees the choice. Did you mean "
                "`callback.add_to(trainer)` in place of `callbacks=[callback]`?"
            )
        if args.neftune_noise_alpha:
            warnings.warn(
                f"ConstraintCallback: neftune_noise_alpha={args.neftune_noise_alpha:g} adds noise, "
                "which the loss measures as forgetting. Did you mean None?",
                stacklevel=2,
            )
        super().on_train_begin(args, state, **given)
        self.constraint.discard()
        saved = state.stateful_callbacks.get(self._key)  # type: ignore[union-attr]
        self._written = saved
        if saved is not None:
            self.constraint.load_state_dict(from_json(saved))
        elif state.global_step:
            raise ValueError(
                f"{type(self).__name__}: this checkpoint has no {self._key!r}, and the multiplier "
                "would start again. Was it saved by another trainer, or without this callback?"
            )
        if finds_mu(self.constraint):
            if args.max_grad_norm:
                raise ValueError(
                    f'{type(self).__name__}: mu="auto" cannot read a penalty that max_grad_norm='
                    f"{args.max_grad_norm:g} clips. Did you mean 0, or a number for mu?"
                )
            self._attachment = self.constraint.attach(optimizer)
        self._steps, self._scale = self.constraint.metrics()["steps"], scale_of(optimizer)

    def on_optimizer_step(
        self, args: Any, state: TrainerState, *_: Any, optimizer: Any = None, **__: Any
    ) -> None:
        """Update the multiplier, before the schedule, logs, stops and checkpoints of this step."""
        scale, self._scale = self._scale, scale_of(optimizer)
        if self._scale < scale or getattr(optimizer, "step_was_skipped", False):
            self.constraint.discard()  # a checkpoint may come next, which holds no measurement
        elif self.constraint.metrics()["steps"] == self._steps:  # else it is attached
            self.constraint.step()
        self._steps = self.constraint.metrics()["steps"]
        # Now rather than on saving: other callbacks may ask for a checkpoint at any time.
        self._write(state.stateful_callbacks)  # type: ignore[arg-type]

    def on_train_end(self, args: Any, state: TrainerState, *_: Any, **given: Any) -> None:
        """Detach the constraint from the optimizer, and warn of a constraint that was missed."""
        if self._attachment is not None:
            self._attachment.remove()
            self._attachment = None
        super().on_train_end(args, state, **given)

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """Discard what an evaluation has measured."""
        self.constraint.discard()

    def _write(self, states: dict[str, Any]) -> None:
        """Write the constraint's state under the name of this callback."""
        if states.get(self._key) is not self._written:
            raise ValueError(
                f"{type(self).__name__}: another callback keeps its state under {self._key!r}, and "
                "a resumed run would give both the same. Did you mean a `name` for each?"
            )
        self._written = states[self._key] = to_json(self.constraint.state_dict())


def scale_of(optimizer: Any) -> float:
    """Return a GradScaler's scale, which falls with a skipped step; fused AdamW has no flag."""
    scaler = getattr(optimizer, "scaler", None)
    return 1.0 if scaler is None else scaler.get_scale()


def finds_mu(constraint: ALMConstraint | ConstraintGroup) -> bool:
    """Return whether some mu is `"auto"`."""
    members = constraint.values() if isinstance(constraint, ConstraintGroup) else [constraint]
    return any("auto" in member.state_dict() for member in members)


def to_json(state: Any) -> Any:
    """Return a state as JSON holds it: a tensor is a list beside its dtype."""
    if isinstance(state, Tensor):
        return {"tensor": state.tolist(), "dtype": str(state.dtype).removeprefix("torch.")}
    if isinstance(state, dict):
        return {key: to_json(value) for key, value in state.items()}
    return [to_json(value) for value in state] if isinstance(state, list | tuple) else state


def from_json(state: Any) -> Any:
    """Return the state that `to_json` was given."""
    if isinstance(state, list):
        return [from_json(value) for value in state]
    if not isinstance(state, dict):
        return state
    if state.keys() == {"tensor", "dtype"}:
        return torch.tensor(state["tensor"], dtype=getattr(torch, state["dtype"]))
    return {key: from_json(value) for key, value in state.items()}


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
