"""ALMTrainer: a constraint in the loss of any Trainer."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from torch_alm._optim.objective import is_first_pass
from torch_alm.integrations.transformers._callback import ConstraintCallback
from torch_alm.integrations.transformers._paired import PairedTrainer, require_pair


class ALMTrainer(PairedTrainer):
    r"""A Trainer whose loss is the retain loss plus a constraint's penalty.

        loss = L_r(retain batch) + penalty(measure(model, forget batch))

    One backward pass and one optimizer, so it works wherever the Trainer behind it does. The
    multiplier is updated once per optimizer step, from all its micro-batches and ranks.

    The constraint's state is in `trainer_state.json` and restored by
    `train(resume_from_checkpoint=...)`. Logs have `retain_loss` and, as `constraint/...`, `value`,
    `violation`, `multiplier`, `weight` and `gate` (1 open, 0 closed). With
    `eval_dataset={"forget": ..., "retain": ...}` an evaluation has the measure of the forget set as
    `eval_forget_loss`, and only those that meet the constraint may become the best checkpoint; of a
    vector the last step decides, in which every entry has to.

    The Trainer clips the norm of the sum of both gradients (`max_grad_norm`, 1 by default), which
    takes the multiplier's size away with everything above it; 0 switches that off.

    Args:
        *args: those of the Trainer behind it.
        per_row: a goal for each forget row: `alpha` of shape (n,) for the n rows of a
            `PairedDataset`, and a measure that gives (B,) values for a batch.
        **kwargs: those of the Trainer behind it, and `constraint`, over the forget side, whose
            `measure` is called with `(model, batch)`.

    Raises:
        ValueError: for an optimizer that steps inside `backward`, a training batch that is no pair,
            a checkpoint without the state of the constraint.

    Cost per step: 2 forward passes, and one backward pass through both.

    Source: SAUL, the "+ ALM" variants.
    """

    _reporting = ConstraintCallback

    def __init__(self, *args: Any, per_row: bool = False, **kwargs: Any) -> None:
        self.per_row = per_row
        super().__init__(*args, **kwargs)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Compute the Lagrangian of a training pair; else see `PairedTrainer`."""
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        require_pair(self, inputs)
        if self.per_row and "index" not in inputs:
            raise ValueError(
                f"{type(self).__name__}: per_row=True, and the batch has no `index` to tell rows "
                "apart. Did you mean `PairedDataset` and `data_collator=PairedCollator(...)`?"
            )
        index = inputs["index"] if self.per_row else None
        loss = self.retain_objective(model, inputs["retain"])
        if not is_first_pass():  # of two passes under SAM the second counts
            self._retain_losses.append(loss.detach())
        loss = loss + self.penalty(model, inputs["forget"], index)
        return (loss, {}) if return_outputs else loss

    def penalty(self, model: nn.Module, batch: Mapping[str, Any], index: Any = None) -> Tensor:
        """Observe the forget batch and return its penalty; with an index the sum over its rows."""
        return self.constraint(model, batch, index=index)
