"""Single AdamW: the sum of both losses, one optimizer state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.methods.joint import JointMethod
from benchmarks.methods.method import Batch
from benchmarks.methods.registry import register
from benchmarks.methods.settings import Settings


@dataclass(frozen=True)
class SingleAdamWSettings(Settings):
    """Settings with `steps`: one on the sum, or two through the same state."""

    steps: Literal["joint", "alternating"] = "joint"


@register("single_adamw", "Single AdamW", position=20)
class SingleAdamW(JointMethod):
    """One AdamW on L_r - weight * L_f (SAUL, appendix on standard baselines).

    `steps="joint"` takes one step on the sum. `steps="alternating"` takes a forget step and then a
    retain step, its gradient at the new weights, through the same moments.
    """

    settings_type = SingleAdamWSettings
    settings: SingleAdamWSettings

    def step(self, retain: Batch, forget: Batch) -> None:
        """One joint step, or two through the same state."""
        if self.settings.steps == "joint":
            return super().step(retain, forget)
        self.optimizer.zero_grad()
        value = self.forget_gradient(forget)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.saw(retain=self.retain_gradient(retain), forget=value)
        return self.optimizer.step()
