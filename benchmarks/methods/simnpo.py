"""SimNPO: NPO without a reference model, on length-normalised losses."""

from __future__ import annotations

from torch import Tensor

from benchmarks.methods.joint import JointMethod
from benchmarks.methods.method import Batch, forward
from benchmarks.methods.registry import register
from torch_alm.measures import simnpo_of_logits, token_nll_of_logits


@register("simnpo", "SimNPO", position=13)
class SimNPO(JointMethod):
    """U = SimNPO with `beta` and `margin`, beside the retain loss (Fan et al. 2024)."""

    def objective(self, forget: Batch) -> tuple[Tensor, Tensor]:
        logits, labels = forward(self.model, forget)
        beta, margin = self.settings.beta, self.settings.margin
        loss = simnpo_of_logits(logits, labels, beta=beta, delta=margin)
        return loss, token_nll_of_logits(logits, labels)
