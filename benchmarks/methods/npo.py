"""NPO: negative preference optimisation beside the retain loss."""

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.methods.joint import JointMethod
from benchmarks.methods.method import Batch, forward, register
from benchmarks.methods.settings import Settings
from benchmarks.methods.sharing import copy_frozen
from torch_alm.measures import npo, sequence_nll, token_nll


@dataclass(frozen=True)
class NPOSettings(Settings):
    """Settings with NPO's inverse temperature."""

    beta: float = 0.1


class NPOMethod(JointMethod):
    """U = NPO against the model from before unlearning: a frozen copy of what is trained."""

    settings_type = NPOSettings
    settings: NPOSettings

    def begin(self) -> None:
        super().begin()
        self.reference = copy_frozen(self.model)

    def objective(self, forget: Batch) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            reference_nll = sequence_nll(self.reference, forget, reduction="none")
        said = forward(self.model, forget)
        return npo(*said, reference_nll, self.settings.beta), token_nll(*said)


@register("npo", "NPO", position=12)
class NPO(NPOMethod):
    """NPO and the retain loss, one optimizer (Zhang et al. 2024, with gradient descent on retain).

    Cost: two backward passes, a frozen copy of the model and a forward pass through it.
    """
