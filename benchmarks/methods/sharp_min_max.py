"""Sharp Min-Max without masks: a flat minimum of one loss, a sharp minimum of the other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from benchmarks.methods import gradients
from benchmarks.methods.method import Batch, Method, register, weighted_step
from benchmarks.methods.settings import Settings
from torch_alm import perturbed


@dataclass(frozen=True)
class SharpMinMaxSettings(Settings):
    """Settings with those of the two sides.

    Attributes:
        forget_lr: Learning rate of the forget side, if not `lr`.
        rho_forget: Radius of the forget side's perturbation.
        rho_retain: Radius of the retain side's perturbation.
        kappa: Weight of the sharpness term.
        order: Retain step first, or both gradients at the same point.
    """

    forget_lr: float | None = None
    rho_forget: float = 1e-3
    rho_retain: float = 1e-3
    kappa: float = 1.0
    order: Literal["sequential", "simultaneous"] = "sequential"


@register("sharp_min_max", "Sharp Min-Max", position=30)
class SharpMinMax(Method):
    """Worst-case retain loss down; forget loss U = -L_f down and its sharpness up.

    With g the gradient at theta and g_hat the one at theta + delta, where delta climbs the loss in
    question, the retain side follows g + kappa (g_hat - g) and the forget side g - kappa (g_hat -
    g): for kappa = 1, g_hat and 2 g - g_hat (Tang and Khanna 2025).

    The objective as SAUL's appendix prints it has U = +L_f, which would train on the forget set.

    `order="sequential"` takes the forget gradient after the retain step; `"simultaneous"` takes
    both at the same weights, which with SGD is one step on their sum. Cost: four backward passes,
    two optimizer states, a copy of a gradient.
    """

    settings_type = SharpMinMaxSettings
    settings: SharpMinMaxSettings

    def begin(self) -> None:
        self.retain_side = self.make_optimizer()
        self.forget_side = self.make_optimizer(lr=self.settings.forget_lr, weight_decay=0.0)

    def step(self, retain: Batch, forget: Batch) -> None:
        """Take one step of each side, in the order of the settings."""
        kept = self.retain_gradient(retain)
        if self.settings.order == "sequential":
            self.retain_side.step()
            self.retain_side.zero_grad()
            value = self.forget_step(forget)
        else:
            retained = gradients.take(self.params)
            value = self.forget_step(forget)
            gradients.add(self.params, retained, 1.0)
            self.retain_side.step()
            self.retain_side.zero_grad()
        self.record_losses(retain=kept, forget=value)

    def retain_gradient(self, retain: Batch) -> Tensor:
        """Set .grad = retain_weight (g + kappa (g_hat - g)); return L_r."""
        settings = self.settings
        loss = self.retain_loss(retain)
        self._sharpen(loss, lambda: self.retain_loss(retain), settings.rho_retain, settings.kappa)
        gradients.scale(self.params, settings.retain_weight)
        return loss

    def forget_step(self, forget: Batch) -> Tensor:
        """Step along weight (g - kappa (g_hat - g)) of U; return F. At weight 0 nothing moves."""
        loss, value = self.objective(forget)
        if self.weigh(value, forget) > 0:
            settings = self.settings
            worse = lambda: self.objective(forget)[0]  # noqa: E731
            self._sharpen(loss, worse, settings.rho_forget, -settings.kappa)
            weighted_step(self.forget_side, self.weight, self.settings.scale)
        self.forget_side.zero_grad()
        return value

    def _sharpen(
        self, loss: Tensor, objective: Callable[[], Tensor], rho: float, kappa: float
    ) -> None:
        """Set .grad = g + kappa (g_hat - g), with g the gradient of `loss`, taken at theta."""
        loss.backward()
        clean = [p.grad for p in self.params]
        with perturbed(self.params, rho):
            objective().backward()
        gradients.scale(self.params, kappa)
        gradients.add(self.params, clean, 1.0 - kappa)
