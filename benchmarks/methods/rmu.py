"""RMU's losses in the place of cross-entropies: what is forgotten is steered, what is kept stays.

A batch of what is to be forgotten is lowered on U = mean (h - c u)^2, its hidden states' distance
from a random direction; what is to be kept on R = mean (h - h_0)^2, the distance from the model of
before (Li et al. 2024). The controller demands U <= tau.
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
        layer: The layer whose states are steered, by name; `auto` is number 7.
        coefficient: c, the length of the vector steered to.
    """

    layer: str = "auto"
    coefficient: float = 6.5


class RMUMixin(Method):
    """A method with RMU's losses: to be named before the method among the bases.

    Each topic has a direction u of its own, drawn when it is first met. The model of before shares
    all parameters that are not trained. Cost: beside the method's passes one forward through the
    model of before per retain loss.
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
        """U <= tau, with tau the settings' alpha."""
        if settings.measure != "token_nll" or isinstance(settings.alpha, str):
            raise ValueError(
                f"With RMU's losses the controller looks at U, not at {settings.measure}, and "
                f"alpha is {settings.alpha!r}. Did you mean a number, or alpha=relative:SHARE in "
                "units of c^2/d?"
            )
        return ALMConstraint(rmu, sense="<=", **settings.controller())

    def step(self, retain: Batch, forget: Batch) -> None:
        """The method's step, with the direction of the batch's topic."""
        self.topic = getattr(forget, "topic", 0)
        super().step(retain, forget)

    def steering_loss(self, forget: Batch) -> Tensor:
        """U of a forget batch."""
        where = next(self.model.parameters()).device
        if self.topic not in self.directions:
            size = hidden_size(self.model)
            vector = steering_vector(size, self.seed + self.topic, device=where)
            self.directions[self.topic] = vector
        direction = self.directions[self.topic]
        return rmu(self.model, forget, self.layer, direction, self.settings.coefficient)

    def objective(self, forget: Batch) -> tuple[Tensor, Tensor]:
        """U is both what is lowered and what is measured."""
        loss = self.steering_loss(forget)
        return loss, loss

    def raised_value(self, forget: Batch) -> Tensor:
        """Lower what a constraint U <= tau measures, else raise -U."""
        loss = self.steering_loss(forget)
        self.forget_loss = loss.detach()
        return loss if self.lowers_measure else -loss

    def retain_loss(self, retain: Batch) -> Tensor:
        """R: the distance from the model of before."""
        return rmu_retain(self.model, retain, self.layer, self.reference)

    def metrics(self) -> dict[str, Any]:
        """Report the metrics of every method, and the topic."""
        return {**super().metrics(), "topic": self.topic}


def steered_layer(model: nn.Module, name: str) -> str:
    """The layer by name; `auto` is number 7 from 0, or the last but one of a smaller model.

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
    """d, the size of a hidden state."""
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
    """The method with RMU's losses, and with the settings of both."""
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
    """The control on R, which starts at its minimum: nothing moves where nothing is steered."""
