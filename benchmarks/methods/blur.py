"""BLUR: project the retain gradient, and move along the forget gradient by a fixed amount."""

from torch import Tensor

from benchmarks.methods import gradients
from benchmarks.methods.method import Batch, register
from benchmarks.methods.npo import NPOMethod


@register("blur", "BLUR", position=40)
class BLUR(NPOMethod):
    """d = g_r + xi g_u, xi = gamma - <g_r, g_u> / ||g_u||^2, so that <d, g_u> = gamma ||g_u||^2.

    The retain gradient g_r loses its part along the forget gradient g_u (of NPO), which is replaced
    by gamma g_u (Reisizadeh et al. 2025). gamma is the forget weight, hence lambda+ under `+ALM`;
    with a closed gate d = g_r, without a projection. Cost: two backward passes, a frozen copy of
    the model, a copy of a gradient.
    """

    def step(self, retain: Batch, forget: Batch) -> None:
        """Take one optimizer step along d."""
        self.optimizer.zero_grad()
        value = self._unit_forget_gradient(forget)
        g_u = gradients.take(self.params)
        kept = self.retain_gradient(retain)
        g_r = [p.grad for p in self.params]
        squared = gradients.dot(g_u, g_u)
        if squared > 0:
            gradients.add(self.params, g_u, self.weight - gradients.dot(g_r, g_u) / squared)
        self.record_losses(retain=kept, forget=value)
        self.optimizer.step()

    def _unit_forget_gradient(self, forget: Batch) -> Tensor:
        """Set .grad = grad U, or nothing if the gate is closed; return F."""
        loss, value = self.objective(forget)
        if self.weigh(value, forget) > 0:
            loss.backward()
        return value
