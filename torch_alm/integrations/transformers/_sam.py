"""SAMTrainer: any Trainer, with its gradients at the worst point nearby."""

from typing import Any

from torch import Tensor, nn

from torch_alm.integrations.transformers._objectives import ObjectiveTrainer
from torch_alm.sam import SAM


class SAMTrainer(ObjectiveTrainer):
    """A Trainer that minimises sharpness-aware: `SAM` around the optimizer it would have used.

    Loss, optimizer (`args.optim`), schedule, clipping, checkpoints and evaluation are those of the
    Trainer behind it. As a mixin, `class Mine(SAMTrainer, YourTrainer)`; in front of `ALMTrainer`
    the Lagrangian is what is minimised. The perturbation follows the gradient of all ranks.

    Args:
        *args: those of the Trainer behind it.
        rho: radius of the ball, in the units of the weights; with 0 it is the Trainer behind it.
        sam: further arguments of `SAM`, such as `{"adaptive": True}`.
        **kwargs: those of the Trainer behind it.

    Raises:
        ValueError: under DeepSpeed; for an optimizer that steps inside `backward`.

    Cost per step: 2 forward and 2 backward passes; one copy of the parameters.

    Source: SAUL, section 4.2; Foret et al. 2021.
    """

    def __init__(
        self, *args: Any, rho: float = 0.05, sam: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self.rho, self._sam = rho, dict(sam or {})
        super().__init__(*args, **kwargs)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Make the optimizer of the Trainer behind it, and wrap it in `SAM`."""
        base = super().create_optimizer(*args, **kwargs)
        if not isinstance(self._optimizer, SAM):
            self.optimizer = SAM(base, self.rho, **self._sam)
        self._optimizer.backward_fn = self._backward
        return self.optimizer

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> Tensor:
        """Take both passes of a micro-batch; return its share in the step's loss."""
        inputs = self._prepare_pass(model, inputs)
        share = 1.0 if self._is_normalised(num_items_in_batch) else 1.0 / self._parts

        def objective() -> Tensor:
            given = {"num_items_in_batch": num_items_in_batch}
            return self._call_in_context(self.compute_loss, model, dict(inputs), **given)

        return self._optimizer.backward(objective, weight=share) * share

    def _is_normalised(self, num_items_in_batch: Any) -> bool:
        """Return whether the loss is divided by the items of all micro-batches already."""
        is_scaled = getattr(self, "loss_is_scaled_for_ga", None)  # since transformers 5
        by_model = num_items_in_batch is not None and self.model_accepts_loss_kwargs
        by_function = self.compute_loss_func is not None
        return (by_model or by_function) if is_scaled is None else is_scaled
