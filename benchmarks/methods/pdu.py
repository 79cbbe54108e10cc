"""PDU: primal-dual unlearning, which constrains the retain loss and forgets as much as it can."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from benchmarks.methods.joint import JointMethod
from benchmarks.methods.method import Batch, forward, register
from benchmarks.methods.settings import Settings
from torch_alm import ALMConstraint
from torch_alm.measures import flattening, token_nll


@dataclass(frozen=True)
class PDUSettings(Settings):
    """Settings with those of the retain constraint.

    Attributes:
        epsilon: Upper bound of the retain loss.
        retain_multiplier: Multiplier of the retain loss to start from.
        dual_lr: Its step size.
        warmup_epochs: Epochs before it starts to move.
    """

    epsilon: float = 0.3
    retain_multiplier: float = 100.0
    dual_lr: float = 5.0
    warmup_epochs: int = 5


@register("pdu", "PDU", position=41)
class PDU(JointMethod):
    """min U subject to L_r <= epsilon, with U the flattening of the answer logits.

    The step is on weight * U + nu * L_r with the retain multiplier nu from before the step; after
    the warm-up epochs nu moves by dual_lr * (L_r - epsilon), never below 0, once per step (Entesari
    et al. 2025). `+ALM` makes it two-sided: lambda+ weighs U. Where both multipliers are 0 nothing
    moves. Cost: two backward passes, one optimizer state.
    """

    settings_type = PDUSettings
    settings: PDUSettings

    def begin(self) -> None:
        super().begin()
        settings = self.settings
        self.retain_constraint = ALMConstraint(
            token_nll,
            alpha=settings.epsilon,
            mu=settings.dual_lr,
            sense="<=",
            multiplier=settings.retain_multiplier,
        )

    def objective(self, forget: Batch) -> tuple[Tensor, Tensor]:
        """Return U, the mean squared distance of the largest logit from the mean logit, and F."""
        said = forward(self.model, forget)
        return flattening(*said), token_nll(*said)

    def retain_gradient(self, retain: Batch) -> Tensor:
        """Add nu * grad L_r, then update nu."""
        loss = token_nll(self.model, retain)
        nu = float(self.retain_constraint.multiplier)
        if nu > 0:
            (nu * loss).backward()
        if self.epochs_done >= self.settings.warmup_epochs:
            self.retain_constraint.observe(loss.detach())
            self.retain_constraint.step()
        return loss

    def metrics(self) -> dict[str, Any]:
        return {**super().metrics(), "retain_multiplier": float(self.retain_constraint.multiplier)}
