"""Lightning: optimizers for manual optimization, and a callback for a constraint in the loss.

Lightning hands every `step` a closure, in manual optimization one that does nothing. `ManualSAM`,
`ManualReverseSAM` and `ManualDualOptimizer` run it and step, so that `self.optimizers().step()`
works and `trainer.global_step` counts. Gradients are taken before it, by
`self.optimizers().optimizer.backward(...)`, with `backward_fn = self.manual_backward` of that
optimizer set once, in `on_fit_start`. Needs lightning 2.
"""

# lightning is no extra of ours, and the checker does not find it
# pyright: reportMissingImports=false, reportUntypedBaseClass=false

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from torch_alm.constraint import ALMConstraint
from torch_alm.dual import DualOptimizer
from torch_alm.sam import SAM, ReverseSAM

__all__ = ["ConstraintCallback", "ManualDualOptimizer", "ManualReverseSAM", "ManualSAM"]

LOGGED = ("value", "violation", "multiplier", "weight")


class _Manual(Optimizer):
    """A mixin for an optimizer whose gradients are there when Lightning steps it."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run Lightning's closure, which takes no gradient, and step."""
        if closure is not None:
            closure()
        return super().step()


class ManualSAM(_Manual, SAM):  # pyright: ignore[reportGeneralTypeIssues]
    """A `SAM` whose gradients are there when Lightning steps it."""


class ManualReverseSAM(_Manual, ReverseSAM):  # pyright: ignore[reportGeneralTypeIssues]
    """A `ReverseSAM` whose gradients are there when Lightning steps it."""


class ManualDualOptimizer(_Manual, DualOptimizer):  # pyright: ignore[reportGeneralTypeIssues]
    """A `DualOptimizer` whose gradients are there when Lightning steps it.

    Its sides are plain ones, `SAM(...)` and `ReverseSAM(...)`: Lightning does not step them.
    """


class ConstraintCallback(Callback):
    """A constraint in the loss of a LightningModule, `loss + constraint(...)`.

    It is stepped with the optimizer, once per optimizer step whatever is accumulated; its metrics
    are logged as `constraint/...`; its state is in the checkpoints; what a validation measures is
    forgotten. A constraint of a `DualOptimizer` needs none of this: the optimizer has it.

    Args:
        constraint: the one that the loss calls.
        optimizer: the place of its optimizer among those of the module.
        name: of its entries in logs and checkpoints.
    """

    def __init__(
        self, constraint: ALMConstraint, *, optimizer: int = 0, name: str = "constraint"
    ) -> None:
        self.constraint, self.optimizer, self.name = constraint, optimizer, name
        self._kept = 0
        self._is_restored = False

    @property
    def state_key(self) -> str:
        """Of this callback's entry in a checkpoint."""
        return f"torch_alm.{self.name}"

    def state_dict(self) -> dict[str, Any]:
        """The constraint's."""
        return self.constraint.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the constraint."""
        self.constraint.load_state_dict(state_dict)
        self._is_restored = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Follow the optimizer's steps.

        Raises:
            ValueError: for a run that goes on from a checkpoint without the constraint's state.
        """
        is_restored, self._is_restored = self._is_restored, False
        if trainer.ckpt_path and trainer.global_step and not is_restored:
            raise ValueError(
                f"ConstraintCallback: {trainer.ckpt_path} has no {self.state_key!r}, and the "
                "multiplier would start again. Was it saved without this callback?"
            )
        self.constraint.discard()  # what a fit that failed, or a test, has measured
        self._attachment = self.constraint.attach(trainer.optimizers[self.optimizer])

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Follow them no longer."""
        self._attachment.remove()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """Log what the constraint does."""
        found = self.constraint.metrics()
        pl_module.log_dict({f"{self.name}/{key}": float(found[key]) for key in LOGGED})

    def on_validation_start(self, *_: Any) -> None:
        """Remember how many micro-batches of an unfinished step there are."""
        self._kept = self.constraint.observed

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        """Forget what a validation has measured."""
        self.constraint.discard(keep=self._kept)
