"""The base of every method: a model, its settings, a forget weight and a step; the registry."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from benchmarks.methods import gradients
from benchmarks.methods.forgetting import check_attainable, measure, row_goals
from benchmarks.methods.settings import Settings
from benchmarks.methods.sharing import copy_frozen
from torch_alm import ALMConstraint
from torch_alm.measures import kl_divergence, token_nll

Batch = Mapping[str, Tensor]


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"adamw": AdamW, "sgd": SGD}


class Method(ABC):
    """One way to unlearn.

    With a constraint a method is its `+ALM` variant: the forget weight is replaced by
    lambda+ = [lambda + mu (alpha - F)]_+, where F is the clean token-mean cross-entropy of the
    forget batch, or `settings.measure`; at lambda+ = 0 only the retain direction is left (SAUL,
    section 4.4).

    The model is changed in place; without a constraint `settings.forget_weight` is fixed.
    """

    alm: ClassVar[Literal["optional", "built in", "left out"]] = "optional"
    """The place of `+alm`; SAUL is defined with the controller, some ablations without."""

    settings_type: ClassVar[type[Settings]] = Settings
    """The hyperparameters it reads."""

    def __init__(
        self, model: nn.Module, settings: Settings, constraint: ALMConstraint | None = None
    ) -> None:
        self.model = model
        self.settings = settings
        self.constraint = constraint
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.weight = settings.forget_weight
        self.epochs_done = 0
        self.losses: dict[str, float] = {}
        self.original = copy_frozen(model) if settings.retain == "kl" else None
        self.begin()

    def begin(self) -> None:
        """Make the method's optimizers and the models it compares with."""
        return

    @classmethod
    def controller(cls, settings: Settings) -> ALMConstraint:
        """Return the controller of the `+ALM` variant: F >= alpha, with F the settings' measure."""
        check_attainable(settings)
        return ALMConstraint(measure(settings), **settings.controller())

    @abstractmethod
    def step(self, retain: Batch, forget: Batch) -> None:
        """Move the weights once, given a batch of each kind."""

    def objective(self, forget: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss U to descend, here -F, and the forgetting measure F to record."""
        value = token_nll(*forward(self.model, forget))
        return -value, value

    def retain_loss(self, retain: Batch) -> Tensor:
        """Return the token-mean cross-entropy, or KL(original || model)."""
        if self.original is not None:
            return kl_divergence(self.model, retain, self.original)
        return token_nll(self.model, retain)

    @property
    def lowers_measure(self) -> bool:
        """True if the controller demands a small measure."""
        return self.constraint is not None and self.constraint.sense == "<="

    def end_epoch(self) -> None:
        """Finish a pass over the forget set."""
        self.epochs_done += 1

    def weigh(self, value: Tensor, forget: Batch | None = None) -> float:
        """Set and return the forget weight of this step: the method's own, or lambda+.

        Args:
            value: The cross-entropy from the forget direction.
            forget: The batch; another measure than the cross-entropy costs one forward pass more.
        """
        if self.constraint is not None:
            if forget is not None and self.settings.measure != "token_nll":
                with torch.no_grad():
                    value = measure(self.settings)(*forward(self.model, forget))
            self.constraint.observe(value.detach())
            self.weight = float(self.constraint.step())
        return self.weight

    def weigh_rows(self, forget: Batch) -> tuple[Tensor, Batch | None]:
        """Weigh a step in which every row has a goal; return F and the rows below it."""
        with torch.no_grad():
            losses = token_nll(self.model, forget, reduction="none")
        value, low = row_goals(losses, self.settings)
        self.weigh(value)
        left = {name: x[low] if x.dim() > 1 else x for name, x in forget.items()}  # places stay
        return value, left if low.any() else None

    def record_losses(self, *, retain: Tensor | None, forget: Tensor) -> None:
        """Record the two losses of this step for the trace."""
        self.losses = {"forget_loss": float(forget.detach())}
        if retain is not None:
            self.losses["retain_loss"] = float(retain.detach())

    def metrics(self) -> dict[str, Any]:
        """Return the latest step's losses, forget weight, gate, lambda and violation."""
        numbers: dict[str, Any] = {
            **self.losses,
            "weight": self.weight,
            "gate_open": float(self.weight > 0),
        }
        if self.constraint is not None:
            seen = self.constraint.metrics()
            numbers |= {"lambda": seen["multiplier"], "alpha": self.constraint.alpha}
            numbers |= {name: seen[name] for name in ("violation", "status")}
        return numbers

    def make_optimizer(
        self, lr: float | None = None, weight_decay: float | None = None
    ) -> Optimizer:
        """Return the optimizer of the settings, over the trainable weights."""
        kind = OPTIMIZERS[self.settings.optimizer]
        decay = self.settings.weight_decay if weight_decay is None else weight_decay
        return kind(self.params, lr=self.settings.lr if lr is None else lr, weight_decay=decay)


def forward(model: nn.Module, batch: Batch) -> tuple[Callable[[], Tensor], Batch]:
    """Run one pass; return a model and a batch for measures that read its logits."""
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    logits: Tensor = model(**inputs).logits
    return lambda: logits, {"labels": batch["labels"]}


def weighted_step(optimizer: Optimizer, weight: float, scale: str) -> None:
    """Take a step with its gradient, or its length (`scale="step"`), multiplied by `weight`."""
    if scale == "gradient":
        gradients.scale([p for group in optimizer.param_groups for p in group["params"]], weight)
        optimizer.step()
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * weight
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


@dataclass(frozen=True)
class Entry:
    """A method with its name and place in tables (smaller comes first)."""

    method: type[Method]
    label: str
    position: int


LOSSES: dict[str, dict[str, Entry]] = {"tokens": {}, "rmu": {}}
"""The methods by the losses they lower and raise: cross-entropies, or RMU's."""


def register(
    key: str, label: str, *, position: int = 99, losses: str = "tokens"
) -> Callable[[type[Method]], type[Method]]:
    """Register a method, as a decorator of its class."""

    def enter(method: type[Method]) -> type[Method]:
        LOSSES[losses][key] = Entry(method, label, position)
        return method

    return enter
