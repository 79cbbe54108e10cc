"""The methods of the command, each under the controller: one step on a batch of either kind.

Which forget direction is taken is the method's; how hard, and when no more, is the constraint's.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM
from torch_alm.cli.goal import Goal
from torch_alm.cli.parts import mean_in_parts
from torch_alm.language import Batch, LanguageModel
from torch_alm.measures import sequence_nll, token_nll_of_logits
from torch_alm.rules import Leak
from torch_alm.unlearning.methods import ascent, npo, simnpo
from torch_alm.unlearning.models import trainable
from torch_alm.unlearning.refusal import Refusal


@dataclass(frozen=True)
class Rates:
    """The numbers of a method.

    Attributes:
        lr: learning rate, of both sides where there are two.
        rho: radius of SAUL's perturbations.
        mu: step size of the multiplier.
        beta: inverse temperature of NPO (0.1) and SimNPO (4.5).
    """

    lr: float
    rho: float
    mu: float
    beta: float


class Step(NamedTuple):
    """The two numbers of a step: the retain loss, and the measured value on the forget batch."""

    retain: float
    forget: float


class Method(ABC):
    """A model, a constraint on it, and the optimizer that moves it.

    Attributes:
        rows_at_once: most rows of a forward pass of training; a larger batch goes through in parts.
    """

    needs_reference: ClassVar[bool] = False
    """True if batches carry `reference_nll`, what the original model says to them."""

    optimizers: ClassVar[int] = 1
    """The number of AdamW states."""

    def __init__(
        self, model: LanguageModel, goal: Goal, rates: Rates, autocast: Callable[[], Any]
    ) -> None:
        self.model, self.goal, self.rates, self.autocast = model, goal, rates, autocast
        self.rows_at_once: int | None = None
        # A rate has no room above its level for lambda to unwind in: it is given back instead.
        rules = [Leak(share=0.5)] if goal.kind == "rate" else []
        self.constraint = ALMConstraint(None, alpha=goal.alpha, mu=rates.mu, rules=rules)
        self.params = list(trainable(model).values())
        self.optimizer = self.make_optimizer()

    @abstractmethod
    def make_optimizer(self) -> Optimizer:
        """Make the optimizer that moves the weights."""

    @abstractmethod
    def step(self, retain: Batch, forget: Batch) -> Step:
        """Move the weights once."""

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs besides the weights."""
        parts = {"optimizer": self.optimizer, "constraint": self.constraint}
        return {name: part.state_dict() for name, part in parts.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.constraint.load_state_dict(state["constraint"])

    def logits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits and labels."""
        inputs = {k: batch[k] for k in ("input_ids", "attention_mask")}
        with self.autocast():
            return self.model(**inputs, use_cache=False).logits, batch["labels"]

    def retain_loss(self, batch: Batch) -> Tensor:
        """Token NLL of the retain answers."""
        return self.mean(lambda rows: token_nll_of_logits(*self.logits(rows)), batch)

    def measured(self, batch: Batch) -> Tensor:
        """The goal's measure of the forget answers."""
        return self.mean(lambda rows: self.goal.measure(*self.logits(rows)), batch)

    def mean(self, kernel: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
        """Mean over the rows of a batch, so many at once as are allowed."""
        return mean_in_parts(kernel, batch, self.rows_at_once)


class Dual(Method):
    """Dual AdamW with the controller: a state for each side (SAUL, section 4.3)."""

    optimizers = 2

    def make_optimizer(self) -> DualOptimizer:
        """Both sides at the same weights."""
        adamw = partial(AdamW, self.params, lr=self.rates.lr, weight_decay=0.0)
        return DualOptimizer(*self.sides(adamw(), adamw()), self.constraint, probe_every=8)

    def sides(self, retain: Optimizer, forget: Optimizer) -> tuple[Optimizer, Optimizer]:
        """The optimizers that lower the retain loss and raise what is measured."""
        return retain, forget

    def step(self, retain: Batch, forget: Batch) -> Step:
        """Algorithm 1, with whatever the two sides are."""
        optimizer = self.optimizer
        assert isinstance(optimizer, DualOptimizer)
        seen = optimizer.backward(
            retain=lambda: self.retain_loss(retain),
            forget=lambda: self.measured(forget),
            last=True,
        )
        optimizer.step()
        optimizer.zero_grad()
        # Not `seen.forget`, which is `nan` in steps that do not measure.
        return Step(float(seen.retain), self.constraint.metrics()["value"])


class SAUL(Dual):
    """Algorithm 1 of SAUL: both sides sharpness-aware. Four passes each way per step."""

    def sides(self, retain: Optimizer, forget: Optimizer) -> tuple[Optimizer, Optimizer]:
        """Gradients from where, nearby, the retain loss is worst and the answer closest."""
        rho = self.rates.rho
        return SAM(retain, rho=rho), ReverseSAM(forget, rho=rho)


class GradDiff(Method):
    """Gradient difference with the controller: retain loss, minus lambda+ times the measure.

    The sum is divided by 1 + lambda+. Adam's step does not depend on the scale of its gradients,
    but its mean of their squares lasts a thousand steps: one stretch with lambda+ at 20 and the
    retain side would hardly move until it has faded.
    """

    def make_optimizer(self) -> Optimizer:
        """One state for the sum."""
        return AdamW(self.params, lr=self.rates.lr, weight_decay=0.0)

    def pair(self, batch: Batch) -> Tensor:
        """(2,): what is descended on forget rows, and what the constraint sees."""
        return torch.stack(ascent(self.goal.measure, *self.logits(batch)))

    def step(self, retain: Batch, forget: Batch) -> Step:
        """The forget direction, weighed by lambda+; the retain direction; one step."""
        loss, value = self.mean(self.pair, forget)
        self.constraint.observe(value.detach())
        weight = float(self.constraint.step())
        if weight > 0:
            (weight / (1 + weight) * loss).backward()
        kept = self.retain_loss(retain)
        (kept / (1 + weight)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return Step(float(kept.detach()), float(value.detach()))


class NPO(GradDiff):
    """NPO with the controller (Zhang et al. 2024), beside the retain loss.

    The reference is what the original model says to each forget row, computed once: no second model
    is kept.
    """

    needs_reference = True

    def pair(self, batch: Batch) -> Tensor:
        """NPO against the reference."""
        reference, beta = batch["reference_nll"], self.rates.beta
        return torch.stack(npo(self.goal.measure, *self.logits(batch), reference, beta))


class SimNPO(GradDiff):
    """SimNPO with the controller (Fan et al. 2024), beside the retain loss."""

    def pair(self, batch: Batch) -> Tensor:
        """SimNPO, without a reference."""
        return torch.stack(simnpo(self.goal.measure, *self.logits(batch), beta=self.rates.beta))


METHODS: Mapping[str, type[Method]] = {
    "saul": SAUL,
    "dual": Dual,
    "grad_diff": GradDiff,
    "npo": NPO,
    "simnpo": SimNPO,
}
BETAS = {"npo": 0.1, "simnpo": 4.5}
RHO = 1e-3


def check_own(method: str, rho: float | None, beta: float | None) -> None:
    """Refuse numbers of another method, which would change nothing."""
    for name, value, has_it in (("--rho", rho, ("saul",)), ("--beta", beta, (*BETAS,))):
        if value is not None and method not in has_it:
            raise Refusal(
                f"{name} {value:g} is of {' and '.join(has_it)}, and --method {method} has none. "
                "Did you mean another method?"
            )


@torch.no_grad()
def reference_nll(model: LanguageModel, batches: Sequence[Batch]) -> Tensor:
    """(rows,) summed NLL of every forget row under the model as it is, for NPO."""
    return torch.cat([sequence_nll(model, batch, reduction="none") for batch in batches])
