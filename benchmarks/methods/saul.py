"""SAUL (Algorithm 1) and its ablations."""

from dataclasses import dataclass

from torch.optim import Optimizer

from benchmarks.methods.dual_adamw import DualAdamW, TwoStates
from benchmarks.methods.method import register
from torch_alm import SAM, ReverseSAM


@dataclass(frozen=True)
class SAULSettings(TwoStates):
    """Settings with the radii, Euclidean over all weights.

    Attributes:
        rho_forget: Radius of the forget side's perturbation.
        rho_retain: Radius of the retain side's perturbation.
    """

    rho_forget: float = 1e-3
    rho_retain: float = 1e-3


class _RetainSAM(DualAdamW):
    """Two states, the retain side sharpness-aware."""

    settings_type = SAULSettings
    settings: SAULSettings

    def retain_side(self) -> Optimizer:
        """Return SAM around the optimizer of the retain side."""
        plain, rho = super().retain_side(), self.settings.rho_retain
        return SAM(plain, rho=rho) if rho else plain  # at 0 a second pass would change nothing


class _BothSAM(_RetainSAM):
    """Two states, both sides sharpness-aware."""

    def forget_side(self) -> Optimizer:
        """Return SAM, against relearning, around the optimizer of the forget side."""
        kind = SAM if self.lowers_measure else ReverseSAM
        plain, rho = super().forget_side(), self.settings.rho_forget
        return kind(plain, rho=rho) if rho else plain


@register("saul", "SAUL", position=50)
class SAUL(_BothSAM):
    """min L_r, worst case within rho_retain, subject to L_f >= alpha within rho_forget.

    Cost: four forward and four backward passes, two optimizer states (SAUL, section 4.2).
    """

    alm = "built in"


@register("saul_no_alm", "SAUL w/o ALM", position=51)
class WithoutALM(_BothSAM):
    """The forget step is always on, with weight 1."""

    alm = "left out"


@register("saul_no_sam", "SAUL w/o SAM", position=52)
class WithoutSAM(_RetainSAM):
    """The forget side is plain and the constraint is on the clean loss; retain SAM is kept."""

    alm = "built in"


@register("saul_no_alm_no_sam", "SAUL w/o ALM + SAM", position=53)
class WithoutALMAndSAM(_RetainSAM):
    """A plain forget step, always on, beside a retain SAM step."""

    alm = "left out"
