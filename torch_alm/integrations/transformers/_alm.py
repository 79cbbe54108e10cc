"""ALMTrainer: a constraint in the loss of any Trainer."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from torch_alm.constraint import ALMConstraint
from torch_alm.integrations.transformers._paired import PairedTrainer, require_pair

FILE = "constraint.pt"


class ALMTrainer(PairedTrainer):
    r"""A Trainer whose loss is the retain loss plus a constraint's penalty.

        loss = L_r(retain batch) + penalty(measure(model, forget batch))

    One backward pass and one optimizer, so it works wherever the Trainer behind it does. The
    multiplier is updated once per optimizer step, from all its micro-batches and ranks. As a mixin,
    `class Mine(ALMTrainer, YourTrainer)`, it takes the loss of `YourTrainer` for L_r.

    The constraint's state is saved as `constraint.pt` in the Trainer's checkpoints and restored by
    `train(resume_from_checkpoint=...)`. Training logs have `retain_loss` and, as
    `constraint/...`, `value`, `violation`, `multiplier`, `weight` and `gate` (1 open, 0 closed).
    With `eval_dataset={"forget": ..., "retain": ...}` an evaluation has the measure of the forget
    set as `eval_forget_loss`, and only evaluations where it meets the constraint may become the
    best checkpoint (`load_best_model_at_end`, `save_strategy="best"`).

    The Trainer clips the norm of the sum of both gradients (`max_grad_norm`, 1 by default), which
    takes the multiplier's size away with everything above it; 0 switches that off.

    Args:
        *args: those of the Trainer behind it.
        constraint: over the forget side; its `measure` is called with `(model, batch)`.
        **kwargs: those of the Trainer behind it.

    Attributes:
        constraint: as given.

    Raises:
        ValueError: for a training batch that is no pair; for a checkpoint without `constraint.pt`.

    Cost per step: 2 forward passes, and one backward pass through both.

    Source: SAUL, the "+ ALM" variants.
    """

    def __init__(self, *args: Any, constraint: ALMConstraint, **kwargs: Any) -> None:
        super().__init__(*args, constraint=constraint, **kwargs)
        self.add_callback(_StepConstraint(self))

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The Lagrangian of a training pair; else see `PairedTrainer`."""
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        require_pair(self, inputs)
        loss = self.retain_objective(model, inputs["retain"])
        self._retain_losses.append(loss.detach())
        loss = loss + self.penalty(model, inputs["forget"])
        return (loss, {}) if return_outputs else loss

    def penalty(self, model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
        """Observe the forget batch and give its penalty."""
        return self.constraint(model, batch)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            path = Path(output_dir) / FILE
            torch.save(self.constraint.state_dict(), path.with_suffix(".tmp"))
            os.replace(path.with_suffix(".tmp"), path)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        path = Path(checkpoint) / FILE
        if not path.is_file():
            raise ValueError(
                f"{type(self).__name__}: {checkpoint} has no {FILE}, and the multiplier would "
                "start again. Was it saved by another trainer, or with `save_only_model=True`?"
            )
        self.constraint.load_state_dict(torch.load(path, weights_only=True))


class _StepConstraint(TrainerCallback):
    """One update of the multiplier per step that the optimizer took."""

    def __init__(self, trainer: ALMTrainer) -> None:
        self._trainer = trainer

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Before the schedule, logs, stops and checkpoints of this step."""
        constraint = self._trainer.constraint
        if self._trainer.accelerator.optimizer_step_was_skipped:  # by a GradScaler
            constraint.discard()
        else:
            constraint.step()
