"""SimNPO: NPO without a reference model, on length-normalised losses."""

from dataclasses import dataclass

from torch import Tensor

from benchmarks.methods.joint import JointMethod
from benchmarks.methods.method import Batch, forward, register
from benchmarks.methods.settings import Settings
from torch_alm.measures import simnpo, token_nll


@dataclass(frozen=True)
class SimNPOSettings(Settings):
    """Settings with SimNPO's inverse temperature, and its gamma as `margin`."""

    beta: float = 0.1
    margin: float = 0.0  # in every released setting


@register("simnpo", "SimNPO", position=13)
class SimNPO(JointMethod):
    """U = SimNPO beside the retain loss (Fan et al. 2024)."""

    settings_type = SimNPOSettings
    settings: SimNPOSettings

    def objective(self, forget: Batch) -> tuple[Tensor, Tensor]:
        said = forward(self.model, forget)
        loss = simnpo(*said, beta=self.settings.beta, delta=self.settings.margin)
        return loss, token_nll(*said)
