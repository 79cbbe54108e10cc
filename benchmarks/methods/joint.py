"""Methods with one optimizer: one gradient, one step."""

from typing import ClassVar

from torch import Tensor

from benchmarks.methods.method import Batch, Method


class JointMethod(Method):
    """One step on weight * U(theta; forget) + retain_weight * L_r(theta; retain).

    Cost: two backward passes, one optimizer state.
    """

    keeps_retain: ClassVar[bool] = True
    """True if there is a retain direction at all."""

    def begin(self) -> None:
        self.optimizer = self.make_optimizer()

    def step(self, retain: Batch, forget: Batch) -> None:
        """Weigh the forget direction, add the retain direction, move once."""
        self.optimizer.zero_grad()
        value = self.forget_gradient(forget)
        kept = self.retain_gradient(retain) if self.keeps_retain else None
        self.record_losses(retain=kept, forget=value)
        self.optimizer.step()

    def forget_gradient(self, forget: Batch) -> Tensor:
        """Add weight * grad U; return F. At weight 0 nothing is added."""
        if self.constraint is not None and self.settings.measure == "row_nll":
            value, left = self.weigh_rows(forget)  # rows below their goal
            if self.weight > 0 and left is not None:
                (self.weight * self.objective(left)[0]).backward()
            return value
        loss, value = self.objective(forget)
        if self.weigh(value, forget) > 0:
            (self.weight * loss).backward()
        return value

    def retain_gradient(self, retain: Batch) -> Tensor:
        """Add retain_weight * grad L_r; return L_r."""
        loss = self.retain_loss(retain)
        (self.settings.retain_weight * loss).backward()
        return loss
