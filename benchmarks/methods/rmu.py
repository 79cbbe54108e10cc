"""RMU's losses in place of cross-entropies.

For a forget batch U = mean (h - c u)^2 is lowered, the distance of its hidden states from a random
direction; for a retain batch R = mean (h - h_0)^2, the distance from the original model (Li et al.
2024). The controller demands U <= tau.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.methods.blur import BLUR
from benchmarks.methods.dual_adamw import DualAdamW
from benchmarks.methods.joint import JointMethod
from benchmarks.methods.method import LOSSES, Batch, Method, register
from benchmarks.methods.relearning_resilient import RelearningResilient
from benchmarks.methods.retain_only import RetainOnly
from benchmarks.methods.saul import SAUL, WithoutALM, WithoutALMAndSAM, WithoutSAM
from benchmarks.methods.settings import Settings
from benchmarks.methods.sharing import copy_frozen
from benchmarks.methods.sharp_min_max import SharpMinMax
from torch_alm import ALMConstraint
from torch_alm.measures import rmu, rmu_retain, steering_vector

AUTHORS_LAYER = 7


class TopicBatch(dict[str, Tensor]):
    """A batch of one topic; `topic` is its number."""

    def __init__(self, tensors: Mapping[str, Tensor], topic: int = 0) -> None:
        super().__init__(tensors)
        self.topic = topic


@dataclass(frozen=True)
class RMUSettings(Settings):
    """Settings with those of RMU's losses.

    Attributes:
        layer: Name of the layer whose states are steered; `auto` is number 7.
        coefficient: c, the length of the target vector.
    """

    layer: str = "auto"
    coefficient: float = 6.5


class RMUMixin(Method):
    """A mixin that gives a method RMU's losses; it comes first among the bases.

    Each topic has its own direction u, drawn at its first batch. The original model shares all
    parameters that are not trained. Cost: the method's passes, and one forward of the original
    model per retain loss.
    """

    settings_type = RMUSettings
    settings: RMUSettings
    reference: nn.Module

    def begin(self) -> None:
        super().begin()
        self.reference = copy_frozen(self.model)
        self.layer = steered_layer(self.model, self.settings.layer)
        self.seed = int(torch.randint(2**31 - 1, ()))
        self.topic = 0
        self.directions: dict[int, Tensor] = {}

    @classmethod
    def controller(cls, settings: Settings) -> ALMConstraint:
        """Return the controller U <= tau, with tau the settings' alpha."""
        if settings.measure != "token_nll" or isinstance(settings.alpha, str):
            raise ValueError(
                f"With RMU's losses the controller looks at U, not at {settings.measure}, and "
                f"alpha is {settings.alpha!r}. Did you mean a number, or alpha=relative:SHARE in "
                "units of c^2/d?"
            )
        return ALMConstraint(rmu, sense="<=", **settings.controller())

    def step(self, retain: Batch, forget: Batch) -> None:
        """Take the method's step with the direction of the batch's topic."""
        self.topic = getattr(forget, "topic", 0)
        super().step(retain, forget)

    def steering_loss(self, forget: Batch) -> Tensor:
        """Return U of a forget batch."""
        where = next(self.model.parameters()).device
        if self.topic not in self.directions:
            size = hidden_size(self.model)
            vector = steering_vector(size, self.seed + self.topic, device=where)
            self.directions[self.topic] = vector
        direction = self.directions[self.topic]
        return rmu(self.model, forget, self.layer, direction, self.settings.coefficient)

    def objective(self, forget: Batch) -> tuple[Tensor, Tensor]:
        """Return U as the loss and as the measure."""
        loss = self.steering_loss(forget)
        return loss, loss

    def raised_value(self, forget: Batch) -> Tensor:
        """Return U for a constraint U <= tau, which lowers it, else -U."""
        loss = self.steering_loss(forget)
        self.forget_loss = loss.detach()
        return loss if self.lowers_measure else -loss

    def retain_loss(self, retain: Batch) -> Tensor:
        """Return R, the distance from the original model."""
        return rmu_retain(self.model, retain, self.layer, self.reference)

    def metrics(self) -> dict[str, Any]:
        """Return the metrics of every method, and the topic."""
        return {**super().metrics(), "topic": self.topic}


def steered_layer(model: nn.Module, name: str) -> str:
    """Return the layer by name; `auto` is number 7 from 0, or the last but one if there are fewer.

    Raises:
        ValueError: There is no module of that name; the message lists the decoder layers.
    """
    layers = [n for n, _ in model.named_modules() if re.search(r"(^|\.)(layers|h)\.\d+$", n)]
    if name == "auto" and layers:
        return layers[max(0, min(AUTHORS_LAYER, len(layers) - 2))]
    if name in dict(model.named_modules()):
        return name
    raise ValueError(
        f"layer={name!r}: {type(model).__name__} has no module of that name to steer. Did you mean "
        f"one of {', '.join(layers) or 'another model'}?"
    )


def hidden_size(model: Any) -> int:
    """Return d, the size of a hidden state."""
    return int(model.config.get_text_config().hidden_size)


@register("rmu", "RMU", position=14, losses="rmu")
class RMU(RMUMixin, JointMethod):
    """One AdamW on U + retain_weight * R (Li et al. 2024). Cost: two backward passes."""


STEERED = (
    DualAdamW,
    SharpMinMax,
    RelearningResilient,
    BLUR,  # d = g_u + w (g_r - its part along g_u), with w the retain weight
    SAUL,
    WithoutALM,
    WithoutSAM,
    WithoutALMAndSAM,
)
"""Methods that take RMU's losses as they take cross-entropies, under the same keys."""


def with_rmu_losses(method: type[Method]) -> type[Method]:
    """Return the class of a method with RMU's losses and the settings of both."""
    own = make_dataclass(
        f"{method.__name__}RMUSettings", [], bases=(RMUSettings, method.settings_type), frozen=True
    )
    body = {"__module__": __name__, "settings_type": own}
    return type(f"{method.__name__}OnRMU", (RMUMixin, method), body)


for _key, _entry in LOSSES["tokens"].items():
    if _entry.method in STEERED:
        _enter = register(_key, _entry.label, position=_entry.position, losses="rmu")
        _enter(with_rmu_losses(_entry.method))


class RetainOnlyOnRMU(RMUMixin, RetainOnly):
    """The control on R, which starts at its minimum: without steering nothing moves."""
