"""Relearning-resilient unlearning: NPO at the worst point nearby, and the retain loss."""

from dataclasses import dataclass

from torch import Tensor

from benchmarks.methods.method import Batch, register
from benchmarks.methods.npo import NPOMethod, NPOSettings
from torch_alm import perturbed


@dataclass(frozen=True)
class RelearningResilientSettings(NPOSettings):
    """Settings with the radius of the attack."""

    rho_forget: float = 1e-3


@register("relearning_resilient", "Relearning-resilient", position=31)
class RelearningResilient(NPOMethod):
    """min max_delta U_NPO(theta + delta) + retain_weight * L_r(theta), one optimizer.

    delta climbs NPO, towards relearning; the retain gradient is taken at theta (Fan et al. 2025).
    Under `+ALM` the clean cross-entropy is to reach alpha, as for every other method: NPO falls as
    forgetting succeeds, so the paper's F = max NPO >= alpha would ask the model to remember.
    Cost: three backward passes, a frozen copy of the model.
    """

    settings_type = RelearningResilientSettings
    settings: RelearningResilientSettings

    def forget_gradient(self, forget: Batch) -> Tensor:
        """Add weight * grad U(theta + delta); return the clean F."""
        loss, value = self.objective(forget)
        if self.weigh(value, forget) > 0:
            loss.backward()
            with perturbed(self.params, self.settings.rho_forget):
                worst, _ = self.objective(forget)
                (self.weight * worst).backward()
        return value
