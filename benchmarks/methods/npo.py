"""NPO: negative preference optimisation beside the retain loss."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.methods.joint import JointMethod
from benchmarks.methods.method import Batch, forward
from benchmarks.methods.registry import register
from benchmarks.methods.sharing import frozen
from torch_alm.measures import sequence_nll, token_nll_of_logits
from torch_alm.unlearning.methods import npo


class NPOMethod(JointMethod):
    """U = NPO against the model from before unlearning: a frozen copy of what is trained."""

    def begin(self) -> None:
        super().begin()
        self.reference = frozen(self.model, offloaded=self.settings.reference == "offloaded")

    def objective(self, forget: Batch) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            reference_nll = sequence_nll(self.reference, forget, reduction="none")
        seen = forward(self.model, forget)
        return npo(token_nll_of_logits, *seen, reference_nll, self.settings.beta)


@register("npo", "NPO", position=12)
class NPO(NPOMethod):
    """NPO and the retain loss, one optimizer (Zhang et al. 2024, with gradient descent on retain).

    Cost: two backward passes, a frozen copy of the model and a forward pass through it.
    """
