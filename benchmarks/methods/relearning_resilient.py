"""Relearning-resilient unlearning: NPO at the worst point nearby, and the retain loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from benchmarks.methods.forgetting import check_attainable
from benchmarks.methods.method import Batch
from benchmarks.methods.npo import NPOMethod, NPOSettings
from benchmarks.methods.registry import register
from torch_alm import ALMConstraint, perturbed
from torch_alm.measures import npo


@dataclass(frozen=True)
class RelearningResilientSettings(NPOSettings):
    """Settings with the radius of the attack, and what `+ALM` reads (see the method)."""

    rho_forget: float = 1e-3
    reading: Literal["clean_ce", "worst_npo"] = "clean_ce"


@register("relearning_resilient", "Relearning-resilient", position=31)
class RelearningResilient(NPOMethod):
    """min max_delta U_NPO(theta + delta) + retain_weight * L_r(theta), one optimizer.

    delta climbs NPO, that is, towards relearning; the retain gradient is taken at theta (Fan et al.
    2025). Cost: three backward passes, a frozen copy of the model.

    The paper's F = max NPO >= alpha would ask the model to remember, since NPO falls as forgetting
    succeeds. Two readings of `+ALM` make sense, with the same direction:

    - `clean_ce`: the clean cross-entropy is to reach alpha, as for every other method.
    - `worst_npo`: the worst NPO nearby is to fall to alpha, which is then on NPO's scale (it starts
      at (2/beta) ln 2).
    """

    settings_type = RelearningResilientSettings
    settings: RelearningResilientSettings

    @classmethod
    def controller(cls, settings: RelearningResilientSettings) -> ALMConstraint:
        """F = clean cross-entropy >= alpha, or worst-case NPO <= alpha."""
        if settings.reading == "clean_ce":
            return super().controller(settings)
        check_attainable(replace(settings, measure="token_nll"))
        return ALMConstraint(npo, sense="<=", **settings.controller())

    def forget_gradient(self, forget: Batch) -> Tensor:
        """Add weight * grad U(theta + delta); return the clean F."""
        loss, value = self.objective(forget)
        by_value = self.settings.reading == "clean_ce"
        if by_value and self.weigh(value, forget) == 0:
            return value
        loss.backward()
        settings = self.settings
        with perturbed(self.params, settings.rho_forget, rounding=settings.rounding):
            worst, _ = self.objective(forget)
            if by_value or self.weigh(worst) > 0:
                (self.weight * worst).backward()
        return value
