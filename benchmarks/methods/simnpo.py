"""SimNPO: NPO without a reference model, on length-normalised losses."""

from __future__ import annotations

from torch import Tensor

from benchmarks.methods.joint import JointMethod
from benchmarks.methods.method import Batch, forward
from benchmarks.methods.registry import register
from torch_alm.measures import token_nll_of_logits
from torch_alm.unlearning.methods import simnpo


@register("simnpo", "SimNPO", position=13)
class SimNPO(JointMethod):
    """U = SimNPO with `beta` and `margin`, beside the retain loss (Fan et al. 2024)."""

    def objective(self, forget: Batch) -> tuple[Tensor, Tensor]:
        numbers = {"beta": self.settings.beta, "margin": self.settings.margin}
        return simnpo(token_nll_of_logits, *forward(self.model, forget), **numbers)
