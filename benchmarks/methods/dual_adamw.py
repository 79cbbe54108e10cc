"""Dual AdamW: two optimizer states over one set of weights."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from benchmarks.methods.method import Batch, Method
from benchmarks.methods.registry import register
from benchmarks.methods.settings import Settings
from torch_alm import ALMConstraint, DualOptimizer
from torch_alm.measures import token_nll


@register("dual_adamw", "Dual AdamW", position=21)
class DualAdamW(Method):
    """A forget step and a retain step, both gradients at the same weights (SAUL, section 4.3).

    The forget weight of the plain method is 1: under two AdamW states a constant has no effect.
    """

    def __init__(
        self, model: nn.Module, settings: Settings, constraint: ALMConstraint | None = None
    ) -> None:
        super().__init__(model, settings, constraint)
        self.optimizer = DualOptimizer(
            retain=self.retain_side(),
            forget=self.forget_side(),
            constraint=constraint,
            scale=settings.scale,
        )

    def retain_side(self) -> Optimizer:
        """The optimizer that lowers the retain loss."""
        return self.make_optimizer()

    def forget_side(self) -> Optimizer:
        """The optimizer that raises the forget loss; the weights decay on the other side only."""
        return self.make_optimizer(lr=self.settings.forget_lr, weight_decay=0.0)

    def step(self, retain: Batch, forget: Batch) -> None:
        """Algorithm 1, with whatever the two sides are."""
        losses = self.optimizer.backward(
            retain=lambda: token_nll(self.model, retain),
            forget=lambda: token_nll(self.model, forget),
        )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.saw(retain=losses.retain, forget=losses.forget)
        self.weight = 1.0 if self.constraint is None else float(self.constraint.weight)
