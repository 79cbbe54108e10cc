"""One update per step that an optimizer really takes."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torch_alm._control.observations import Observations


class Attachment:
    """A constraint's hooks on an optimizer; `remove()` takes them off."""

    def __init__(
        self, optimizer: Optimizer, observed: Observations, step: Callable[[], Any]
    ) -> None:
        """Call `step` after each step of the optimizer that had something observed."""
        self._observed, self._step = observed, step
        self._is_fresh = False
        self._handles: list[RemovableHandle] = [
            optimizer.register_step_post_hook(self._after_step),
            *self._listen(optimizer),
        ]

    def remove(self) -> None:
        """Take all hooks off."""
        for handle in self._handles:
            handle.remove()

    def _listen(self, optimizer: Optimizer) -> list[RemovableHandle]:
        """Notice gradients that start from nothing: see `Observations`.

        The first hook alone would also run in `torch.autograd.grad`, which leaves no gradient.
        """
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        first = next((p for p in parameters if p.is_leaf and p.requires_grad), None)
        if first is None:
            return []
        return [
            first.register_hook(lambda _: self._before_gradient(first)),
            first.register_post_accumulate_grad_hook(self._after_gradient),
        ]

    def _before_gradient(self, parameter: Tensor) -> None:
        self._is_fresh = parameter.grad is None

    def _after_gradient(self, _: Tensor) -> None:
        self._observed.gradient_arrived(afresh=self._is_fresh)

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if _was_skipped(optimizer):
            self._observed.drop()
        elif self._observed:
            self._step()


class Attachments:
    """Those of several constraints; `remove()` takes all of them off."""

    def __init__(self, members: list[Attachment]) -> None:
        """Hold them together."""
        self._members = members

    def remove(self) -> None:
        """Take all hooks off."""
        for each in self._members:
            each.remove()


def _was_skipped(optimizer: Optimizer) -> bool:
    """A loss scaler lets fused optimizers and wrappers skip a step themselves."""
    found_inf = getattr(optimizer, "found_inf", None)
    return isinstance(found_inf, Tensor) and found_inf.item() != 0
