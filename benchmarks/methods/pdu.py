"""PDU: primal-dual unlearning, which constrains the retain loss and forgets as much as it can."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from benchmarks.methods.joint import JointMethod
from benchmarks.methods.method import Batch, forward
from benchmarks.methods.registry import register
from torch_alm import ALMConstraint
from torch_alm.measures import flattening_of_logits, token_nll, token_nll_of_logits


@register("pdu", "PDU", position=41)
class PDU(JointMethod):
    """min U subject to L_r <= epsilon, with U the flattening of the answer logits.

    The step is on weight * U + nu * L_r with the retain multiplier nu from before the step; after
    the warm-up epochs nu moves by dual_lr * (L_r - epsilon), never below 0, once per step (Entesari
    et al. 2025). `+ALM` makes it two-sided: lambda+ weighs U. Where both multipliers are 0 nothing
    moves. Cost: two backward passes, one optimizer state.
    """

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
        """U = mean squared distance of the largest logit from the mean logit."""
        logits, labels = forward(self.model, forget)
        return flattening_of_logits(logits, labels), token_nll_of_logits(logits, labels)

    def retain_gradient(self, retain: Batch) -> Tensor:
        """Add nu * grad L_r, then let nu see L_r."""
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
