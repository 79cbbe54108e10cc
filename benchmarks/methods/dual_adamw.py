"""Dual AdamW: two optimizer states over one set of weights."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from benchmarks.methods.forgetting import measure, rows_nll
from benchmarks.methods.method import Batch, Method, forward, register
from benchmarks.methods.settings import Settings
from torch_alm import DualOptimizer
from torch_alm.measures import token_nll


@dataclass(frozen=True)
class TwoStates(Settings):
    """Settings with those of a separate forget side.

    Attributes:
        forget_lr: Learning rate of the forget side, if not `lr`. If a preset has one, its ratio to
            `lr` stays when only `lr` is changed.
        probe_every: Steps between two measurements while the gate is closed and lambda is 0.
    """

    forget_lr: float | None = None
    probe_every: int = 1


@register("dual_adamw", "Dual AdamW", position=21)
class DualAdamW(Method):
    """A forget step and a retain step, both gradients at the same weights (SAUL, section 4.3).

    Under two AdamW states the forget weight of the plain method, a constant, has no effect.
    """

    settings_type = TwoStates
    settings: TwoStates

    def begin(self) -> None:
        settings, constraint = self.settings, self.constraint
        self.raises_loss = constraint is None or settings.measure == "token_nll"
        self.optimizer = DualOptimizer(
            retain=self.retain_side(),
            forget=self.forget_side(),
            constraint=constraint,
            scale=settings.scale,
            probe_every=settings.probe_every,
        )

    def retain_side(self) -> Optimizer:
        """Return the optimizer that lowers the retain loss."""
        return self.make_optimizer()

    def forget_side(self) -> Optimizer:
        """Return the optimizer that raises the forget loss, without decay."""
        return self.make_optimizer(lr=self.settings.forget_lr, weight_decay=0.0)

    def raised_value(self, forget: Batch) -> Tensor | tuple[Tensor, Tensor]:
        """Return what is raised: the measure, or without a controller the cross-entropy."""
        said = forward(self.model, forget)
        loss = token_nll(*said)
        self.forget_loss = loss.detach()
        if self.constraint is not None and self.settings.measure == "row_nll":
            return rows_nll(*said, self.settings)
        if self.constraint is None:
            return self.settings.forget_weight * loss
        return loss if self.raises_loss else measure(self.settings)(*said)

    def lowered_loss(self, retain: Batch) -> Tensor:
        """Return what is lowered on the retain side."""
        loss = self.retain_loss(retain)
        self.retain_seen = loss.detach()
        return self.settings.retain_weight * loss

    def step(self, retain: Batch, forget: Batch) -> None:
        """Take a step of Algorithm 1 with the two sides."""
        self.forget_loss = torch.tensor(math.nan)  # if the step does not measure
        self.optimizer.backward(
            retain=lambda: self.lowered_loss(retain),
            forget=lambda: self.raised_value(forget),
            last=self.constraint is not None,
        )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.record_losses(retain=self.retain_seen, forget=self.forget_loss)
        self.weight = 1.0 if self.constraint is None else float(self.constraint.weight)
