"""A constraint's hooks on an optimizer."""

import warnings
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from torch_alm._constraint import faults
from torch_alm._constraint.gradient_reader import GradientReader
from torch_alm._optim.gradients import parameters


class Attachment:
    """A constraint's hooks on an optimizer; `remove()` takes them off."""

    def __init__(
        self,
        optimizer: Optimizer,
        constraint: Any,  # noqa: ANN401  # an ALMConstraint, which imports this module
        reader: GradientReader | None,
    ) -> None:
        """Step the constraint after each step taken; show the reader the gradients before."""
        self._constraint, self._optimizer = constraint, with_hooks(optimizer)
        self._idle = 0  # steps before the first measurement
        self._handles = [] if reader is None else [reader.attach(self._optimizer)]
        self._handles.append(self._optimizer.register_step_post_hook(self._after_step))

    def remove(self) -> None:
        """Take all hooks off."""
        for handle in self._handles:
            handle.remove()

    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        found_inf = getattr(optimizer, "found_inf", None)  # which a GradScaler lends a fused one
        is_skipped = isinstance(found_inf, Tensor) and found_inf.item() != 0
        if self._constraint.observed and not is_skipped:  # what waits is of the same theta
            self._constraint.step()
            if self._constraint.steps == 1 and all(p.grad is None for p in parameters(optimizer)):
                warnings.warn(faults.UNMOVED, stacklevel=3)
        elif self._constraint.steps == 0:
            self._idle += 1
            if self._idle == 2:
                warnings.warn(faults.UNMEASURED, stacklevel=3)


class StepCounter:
    """The steps that all optimizers take, until it is removed."""

    def __init__(self) -> None:
        self.count = 0
        self._handle = register_optimizer_step_post_hook(self._count)

    def remove(self) -> None:
        """Count no more."""
        self._handle.remove()

    def _count(self, *_: object) -> None:
        self.count += 1


class Attachments(list[Attachment]):
    """The attachments of several constraints; `remove()` takes all off."""

    def remove(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take all hooks off."""
        for each in self:
            each.remove()


def with_hooks(optimizer: object, owner: str = "ALMConstraint.attach") -> Optimizer:
    """Find the optimizer, or the one inside it, whose step runs hooks.

    A shell such as accelerate's is an `Optimizer` by its class alone: it was never initialised as
    one, and hands each step that is really taken on to its attribute `optimizer`.

    Raises:
        TypeError: if there is none.
    """
    found: Any = optimizer
    while isinstance(found, Optimizer):
        if "_optimizer_step_post_hooks" in vars(found):
            return found
        found = vars(found).get("optimizer")
    raise TypeError(
        f"{owner} takes a torch.optim.Optimizer and found {type(optimizer).__name__}, "
        "which has no hooks for its steps. Did you mean the optimizer inside it?"
    )
