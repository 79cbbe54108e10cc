"""Trainers that hand objectives to the optimizer instead of calling backward themselves."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import transformers
from torch import Tensor, nn
from transformers import Trainer
from transformers.utils import is_accelerate_available

from torch_alm._constraint.attachment import with_hooks

KNOWN = ("torch_alm.", "transformers.", "trl.")  # TRL's calls the one behind it


class ObjectiveTrainer(Trainer):
    """A Trainer whose gradients are taken by the optimizer, at points of its own choosing."""

    _parts = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        refuse_optimizers(self)
        for other in type(self).__mro__[type(self).__mro__.index(ObjectiveTrainer) + 1 :]:
            if "training_step" in vars(other) and not other.__module__.startswith(KNOWN):
                self._warn_bypassed(other, "training_step", "`ConstraintCallback`")

    def _warn_bypassed(self, other: type, method: str, instead: str) -> None:
        """Warn of an overridden method that never runs in a training."""
        warnings.warn(
            f"{type(self).__name__} takes its gradients itself, and {other.__name__}.{method} is "
            f"never called in a training. Did you mean {instead}, or a loop of your own?",
            stacklevel=3,
        )

    def create_accelerator_and_postprocess(self) -> None:
        """Prepare as the Trainer does; gradients are then reduced in every micro-batch."""
        super().create_accelerator_and_postprocess()
        if self.is_deepspeed_enabled:
            raise ValueError(
                f"{type(self).__name__}: DeepSpeed steps inside its own backward, so that no "
                "second gradient can be taken. Did you mean ALMTrainer, which takes one, or DDP?"
            )
        # Which releases of the Trainer heed accelerate's `sync_each_batch` differs. Without
        # reduction the perturbation would be each rank's own (DDP), or there is none (FSDP2).
        cast(Any, self.accelerator).no_sync = lambda model: nullcontext()
        self._parts = self.args.gradient_accumulation_steps

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Count the micro-batches of the step; an epoch's last has fewer."""
        batches, items = super().get_batch_samples(*args, **kwargs)
        self._parts = max(len(batches), 1)
        return batches, items

    @property
    def _optimizer(self) -> Any:
        """The optimizer that takes the gradients, without accelerate's wrapper."""
        return with_hooks(self.optimizer, type(self).__name__)

    def _prepare_pass(self, model: nn.Module, inputs: Any) -> Any:
        """Set model and optimizer to train; return the batch on the model's device."""
        model.train()
        if callable(train := getattr(self.optimizer, "train", None)):
            train()
        return self._prepare_inputs(inputs)

    def _call_in_context(self, objective: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return an objective in the Trainer's context, averaged over several devices."""
        with self.compute_loss_context_manager():
            found = objective(*args, **kwargs)
        return found.mean() if isinstance(found, Tensor) else found

    def _backward(self, loss: Tensor) -> None:
        """Call the accelerator's `backward`, whose division is undone; the loss is a share."""
        self.accelerator.backward(loss * self.accelerator.gradient_accumulation_steps)


def refuse_optimizers(trainer: Trainer) -> None:
    """Refuse optimizers of `TrainingArguments` that step in `backward`, or cannot be sharded."""
    name = str(getattr(trainer.args.optim, "value", trainer.args.optim))
    if "layerwise" in name or "lomo" in name:
        raise ValueError(
            f'{type(trainer).__name__}: `optim="{name}"` moves weights inside `backward`, once per '
            "pass and before the step is known. Did you mean one that steps afterwards, such as "
            '"adamw_torch" or "galore_adamw"?'
        )
    owner, is_sharded = type(trainer).__name__, getattr(trainer.accelerator, "is_fsdp2", False)
    if trainer.is_fsdp_enabled and name == "adagrad":
        raise ValueError(
            f'{owner}: `optim="adagrad"` makes its state before weights are sharded. accelerate '
            "(1.15, too) leaves it behind: the first step or checkpoint would fail. Did you mean "
            '"adamw_torch"?'
        )
    is_old = transformers.__version__ < "5" or not is_accelerate_available("1.13")
    takes_sides = isinstance(trainer, ObjectiveTrainer)
    if trainer.is_fsdp_enabled and (is_old if is_sharded else takes_sides):
        raise ValueError(
            f"{owner}: FSDP1 gives norms of each rank's part, and FSDP2 resumes without moments "
            "before transformers 5.0 and accelerate 1.13. Did you mean these, with "
            '`fsdp_config={"version": 2}`?'
        )
