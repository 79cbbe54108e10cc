"""Lightning: optimizers for manual optimization.

Lightning hands every `step` a closure, in manual optimization one that does nothing. `ManualSAM`,
`ManualReverseSAM` and `ManualDualOptimizer` run it and step, so that `self.optimizers().step()`
works and `trainer.global_step` counts. Gradients are taken before it, by
`self.optimizers().optimizer.backward(...)`, with `backward_fn = self.manual_backward` of that
optimizer set once, in `on_fit_start`. Needs lightning 2.
"""

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from torch_alm.dual import DualOptimizer
from torch_alm.sam import SAM, ReverseSAM

__all__ = ["ManualDualOptimizer", "ManualReverseSAM", "ManualSAM"]


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
