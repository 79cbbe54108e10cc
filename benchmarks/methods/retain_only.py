"""The control: the retain side alone, which forgets nothing."""

from typing import ClassVar, Literal

from benchmarks.methods.method import Batch, Method

CONTROL, LABEL = "retain_only", "Retain side alone"
"""Its key in results and its name in tables: it stands beside the methods and is none of them."""


class RetainOnly(Method):
    """One optimizer on the retain loss, at the rate and for the steps of the methods beside it.

    No method at these settings can keep more than it does, so it is the ceiling of a table. Cost:
    one backward pass.
    """

    alm: ClassVar[Literal["optional", "built in", "left out"]] = "left out"

    def begin(self) -> None:
        self.weight = 0.0
        self.optimizer = self.make_optimizer()

    def step(self, retain: Batch, forget: Batch) -> None:
        """Lower the retain loss; the forget batch is not used."""
        self.optimizer.zero_grad()
        loss = self.retain_loss(retain)
        (self.settings.retain_weight * loss).backward()
        self.optimizer.step()
        self.losses = {"retain_loss": float(loss.detach())}
