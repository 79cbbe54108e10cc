"""OpenUnlearning's own trainers, as they are, with a constraint."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import Trainer

from torch_alm.integrations.openunlearning._trainers import ResumableTrainer, from_settings
from torch_alm.integrations.transformers import ConstraintCallback
from torch_alm.integrations.transformers._paired import require_of_a_batch


def constrain(kind: type[Trainer]) -> type[Trainer]:
    """Make a trainer of OpenUnlearning, of the same name, that takes a `constraint`."""
    return type(kind.__name__, (ControlledTrainer, kind), {})


class ControlledTrainer(ResumableTrainer):
    """One of OpenUnlearning's own: with a constraint, lambda+ is the weight of its forget loss.

    Its loss is `gamma` times a forget loss plus `alpha` times a retain loss. Each micro-batch the
    measure of the forget batch is observed, without a gradient, and `gamma` is the weight that all
    of this step so far give. Without a constraint it is the trainer behind it, which then also runs
    with a transformers newer than OpenUnlearning's own.

    Cost: one forward pass more.
    """

    def __init__(
        self, *args: Any, constraint: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = False  # each loss is the mean of its micro-batch,
        self.loss_is_scaled_for_ga = False  # which transformers 5 reads here
        self.constraint = None
        if constraint is not None:
            if "gamma" not in vars(self):
                raise ValueError(
                    f"{type(self).__name__}: its loss has no weight `gamma` for the forget side: "
                    "a constraint could not act. Did you mean trainer=ALM, or GradDiff?"
                )
            self.constraint = from_settings(constraint)
            require_of_a_batch(self, self.constraint.measure)
            ConstraintCallback(self.constraint).add_to(self)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Compute their loss with the weight that this step has so far."""
        if self.constraint is not None and self.constraint.measure is not None and model.training:
            with torch.no_grad():
                self.constraint.observe(self.constraint.measure(model, inputs["forget"]))
            self.gamma = self.constraint.preview()
            if "preferences" in vars(self):  # PDU reads a copy
                vars(self)["preferences"][0] = self.gamma
        return super().compute_loss(model, inputs, return_outputs)
