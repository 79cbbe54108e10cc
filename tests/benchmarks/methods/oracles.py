"""Every method by hand, as its paper writes it: plain loops that import nothing of ours.

An oracle is a function (model, settings, batches, weight) that trains the model. `weight(F)` is
what stands before the forget direction: a number, or the controller's lambda+.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from tests import oracle
from tests.benchmarks.toy import Batch, ce, sequence_sums

Grads = list[Any]


class Weight:
    """A fixed weight, or lambda+ = max(lambda + mu (alpha - F), 0)."""

    def __init__(self, settings: Any, controlled: bool) -> None:
        self.s, self.controlled = settings, controlled
        self.value = settings.multiplier if controlled else settings.forget_weight
        self.history: list[float] = []

    def __call__(self, measured: Tensor) -> float:
        if self.controlled:
            self.value = max(self.value + self.s.mu * (self.s.alpha - measured.item()), 0.0)
        self.history.append(self.value)
        return self.value


def full(model: nn.Module, gradient: oracle.Gradient) -> Grads:
    """The gradient, zero where the loss does not reach."""
    pairs = zip(model.parameters(), gradient, strict=True)
    return [torch.zeros_like(p) if g is None else g for p, g in pairs]


def grads(loss: Tensor, model: nn.Module) -> Grads:
    return full(model, oracle.differentiate(loss, [*model.parameters()]))


def nearby(model: nn.Module, rho: float, loss: Callable[[], Tensor]) -> tuple[Tensor, Grads]:
    """Value and gradient of a loss where it is worst at distance rho."""
    g, value = oracle.grad_sam(loss, [*model.parameters()], rho, +1.0)
    return torch.tensor(value, dtype=torch.float64), full(model, g)


def combine(left: Grads, right: Grads, a: float, b: float) -> Grads:
    return [a * x + b * y for x, y in zip(left, right, strict=True)]


def dot(left: Grads, right: Grads) -> float:
    return sum((x * y).sum().item() for x, y in zip(left, right, strict=True))


def optimizer_for(model: nn.Module, s: Any) -> oracle.Base:
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[s.optimizer]
    return oracle.Base(kind(model.parameters(), lr=s.lr, weight_decay=s.weight_decay))


def forget_optimizer_for(model: nn.Module, s: Any) -> oracle.Base:
    """With a rate of its own, and without decay: the weights decay once per step."""
    side = optimizer_for(model, s)
    side.optimizer.param_groups[0].update(lr=s.forget_lr or s.lr, weight_decay=0.0)
    return side


def npo_by_hand(model: nn.Module, reference: nn.Module, data: Batch, beta: float) -> Tensor:
    with torch.no_grad():
        anchor = sequence_sums(reference, data)
    return (-2 / beta * logsigmoid(beta * (sequence_sums(model, data) - anchor))).mean()


def simnpo_by_hand(model: nn.Module, data: Batch, beta: float, margin: float) -> Tensor:
    length = (data["labels"] != -100).sum(1)
    return (-2 / beta * logsigmoid(beta * (sequence_sums(model, data) / length - margin))).mean()


def flattening_by_hand(model: nn.Module, data: Batch) -> Tensor:
    logits = model(data["input_ids"], data["attention_mask"]).logits
    predicting = (data["labels"][:, 1:] != -100).to(logits.dtype)
    heights = (logits.max(-1).values - logits.mean(-1))[:, :-1] ** 2
    return (heights * predicting).sum() / predicting.sum()


class Losses(NamedTuple):
    """The losses that a method lowers on either side, and the measure of its controller.

    Attributes:
        kept: Of (model, the model of before, retain batch, settings).
        lowered: Of the same with a forget batch.
        measured: Of the same.
        sign: The measure is `sign` times what is lowered, for methods that know it there only.
    """

    kept: Callable[[nn.Module, nn.Module, Batch, Any], Tensor]
    lowered: Callable[[nn.Module, nn.Module, Batch, Any], Tensor]
    measured: Callable[[nn.Module, nn.Module, Batch, Any], Tensor]
    sign: float = 1.0


Batches = list[tuple[Batch, Batch]]
Oracle = Callable[[nn.Module, Any, Batches, Weight], None]


def joint(of: Losses, keeps: bool = True) -> Oracle:
    """One optimizer on weight * U + retain_weight * L_r."""

    def run(model: nn.Module, s: Any, batches: Batches, weight: Weight) -> None:
        first, optimizer = copy.deepcopy(model), optimizer_for(model, s)
        for retain, forget in batches:
            w = weight(of.measured(model, first, forget, s))
            parts = [w * of.lowered(model, first, forget, s)] if w > 0 else []
            parts += [s.retain_weight * of.kept(model, first, retain, s)] if keeps else []
            if parts:
                optimizer.step([*model.parameters()], grads(sum(parts), model))

    return run


def dual(of: Losses, retain_sam: bool = False, forget_sam: bool = False) -> Oracle:
    """Algorithm 1, with either perturbation left out."""

    def run(model: nn.Module, s: Any, batches: Batches, weight: Weight) -> None:
        first = copy.deepcopy(model)
        retain_side, forget_side = optimizer_for(model, s), forget_optimizer_for(model, s)
        rho_retain, rho_forget = s.rho_retain * retain_sam, s.rho_forget * forget_sam
        for retain, forget in batches:
            _, g_r = nearby(model, rho_retain, lambda r=retain: of.kept(model, first, r, s))
            worst, g_u = nearby(model, rho_forget, lambda f=forget: of.lowered(model, first, f, s))
            w = weight(of.sign * worst)
            if w > 0:
                oracle.scaled_step(forget_side, [*model.parameters()], g_u, w, s.scale)
            retain_side.step([*model.parameters()], [s.retain_weight * g for g in g_r])

    return run


def sharp_min_max(of: Losses) -> Oracle:
    """Worst-case retain loss down; U down and its sharpness up."""

    def run(model: nn.Module, s: Any, batches: Batches, weight: Weight) -> None:
        first = copy.deepcopy(model)
        retain_side, forget_side = optimizer_for(model, s), forget_optimizer_for(model, s)

        def sharpened(loss: Callable[[], Tensor], rho: float, kappa: float) -> Grads:
            _, hat = nearby(model, rho, loss)
            return combine(grads(loss(), model), hat, 1 - kappa, kappa)

        for retain, forget in batches:
            kept = sharpened(lambda r=retain: of.kept(model, first, r, s), s.rho_retain, s.kappa)
            kept = [s.retain_weight * g for g in kept]
            if s.order == "sequential":
                retain_side.step([*model.parameters()], kept)
            w = weight(of.measured(model, first, forget, s))
            if w > 0:
                steps = sharpened(
                    lambda f=forget: of.lowered(model, first, f, s), s.rho_forget, -s.kappa
                )
                oracle.scaled_step(forget_side, [*model.parameters()], steps, w, s.scale)
            if s.order == "simultaneous":
                retain_side.step([*model.parameters()], kept)

    return run


def relearning(of: Losses) -> Oracle:
    """U where it is worst nearby, beside the retain loss where the weights are."""

    def run(model: nn.Module, s: Any, batches: Batches, weight: Weight) -> None:
        first, optimizer = copy.deepcopy(model), optimizer_for(model, s)
        for retain, forget in batches:
            g_r = grads(s.retain_weight * of.kept(model, first, retain, s), model)
            _, hat = nearby(model, s.rho_forget, lambda f=forget: of.lowered(model, first, f, s))
            w = weight(of.measured(model, first, forget, s))
            optimizer.step([*model.parameters()], combine(g_r, hat, 1.0, w) if w > 0 else g_r)

    return run


def blur(of: Losses) -> Oracle:
    """d = g_r + xi g_u with <d, g_u> = gamma ||g_u||^2."""

    def run(model: nn.Module, s: Any, batches: Batches, weight: Weight) -> None:
        first, optimizer = copy.deepcopy(model), optimizer_for(model, s)
        for retain, forget in batches:
            g_r = grads(s.retain_weight * of.kept(model, first, retain, s), model)
            g_u = grads(of.lowered(model, first, forget, s), model)
            gamma = weight(of.measured(model, first, forget, s))
            xi = gamma - dot(g_r, g_u) / dot(g_u, g_u) if gamma > 0 else 0.0
            optimizer.step([*model.parameters()], combine(g_r, g_u, 1.0, xi))

    return run


def pdu(model: nn.Module, s: Any, batches: Batches, weight: Weight) -> None:
    optimizer, nu = optimizer_for(model, s), s.retain_multiplier
    for retain, forget in batches:
        w, kept = weight(ce(model, forget)), ce(model, retain)
        loss = w * flattening_by_hand(model, forget) + nu * kept
        if w > 0 or nu > 0:
            optimizer.step([*model.parameters()], grads(loss, model))
        nu = max(nu + s.dual_lr * (kept.item() - s.epsilon), 0.0)


def of_both(of: Losses) -> dict[str, Oracle]:
    """The methods that take RMU's losses as they take cross-entropies."""
    return {
        "dual_adamw": dual(of),
        "sharp_min_max": sharp_min_max(of),
        "saul": dual(of, retain_sam=True, forget_sam=True),
        "saul_no_alm": dual(of, retain_sam=True, forget_sam=True),
        "saul_no_sam": dual(of, retain_sam=True),
        "saul_no_alm_no_sam": dual(of, retain_sam=True),
    }


def tokens(lowered: Any, sign: float = 1.0) -> Losses:
    """Cross-entropies to keep and to measure, and a loss of the forget side."""

    def entropy(model: nn.Module, first: nn.Module, data: Batch, s: Any) -> Tensor:
        return ce(model, data)

    return Losses(entropy, lowered, entropy, sign)


ASCENT = tokens(lambda m, first, data, s: -ce(m, data), sign=-1.0)
ON_NPO = tokens(lambda m, first, data, s: npo_by_hand(m, first, data, s.beta))
ON_SIMNPO = tokens(lambda m, first, data, s: simnpo_by_hand(m, data, s.beta, s.margin))

ORACLES = {
    **of_both(ASCENT), "grad_ascent": joint(ASCENT, keeps=False), "grad_diff": joint(ASCENT),
    "single_adamw": joint(ASCENT), "npo": joint(ON_NPO), "simnpo": joint(ON_SIMNPO),
    "relearning_resilient": relearning(ON_NPO), "blur": blur(ON_NPO), "pdu": pdu,
}  # fmt: skip
