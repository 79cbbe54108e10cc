"""Every method by hand, as its paper writes it: plain loops that import nothing of ours.

An oracle is a function (model, settings, batches) that trains the model. `weight(F)` is what stands
before the forget direction: a number, or the controller's lambda+.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from tests.benchmarks.toy import Batch, ce, sequence_sums

Grads = list[Tensor]


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


def grads(loss: Tensor, model: nn.Module) -> Grads:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def at_distance(model: nn.Module, direction: Grads, rho: float, loss: Callable[[], Tensor]) -> Any:
    """(value, gradient) of the loss at theta + rho direction / |direction|; theta is put back."""
    norm = torch.sqrt(sum(d.square().sum() for d in direction))
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for p, d in zip(model.parameters(), direction, strict=True):
            p += rho * d / (norm + 1e-12)
    value = loss()
    result = value.detach(), grads(value, model)
    model.load_state_dict(before)
    return result


def combine(left: Grads, right: Grads, a: float, b: float) -> Grads:
    return [a * x + b * y for x, y in zip(left, right, strict=True)]


def dot(left: Grads, right: Grads) -> float:
    return sum((x * y).sum().item() for x, y in zip(left, right, strict=True))


def optimizer_for(model: nn.Module, s: Any) -> torch.optim.Optimizer:
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[s.optimizer]
    return kind(model.parameters(), lr=s.lr, weight_decay=s.weight_decay)


def forget_optimizer_for(model: nn.Module, s: Any) -> torch.optim.Optimizer:
    """With a rate of its own, and without decay: the weights decay once per step."""
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[s.optimizer]
    return kind(model.parameters(), lr=s.forget_lr or s.lr, weight_decay=0.0)


def move(model: nn.Module, optimizer: torch.optim.Optimizer, gradient: Grads) -> None:
    for p, g in zip(model.parameters(), gradient, strict=True):
        p.grad = g.clone()
    optimizer.step()
    optimizer.zero_grad()


def weighted_move(
    model: nn.Module, optimizer: torch.optim.Optimizer, gradient: Grads, w: float, s: Any
) -> None:
    """w before the optimizer, or w on the distance it has gone."""
    if s.scale == "gradient":
        move(model, optimizer, [w * g for g in gradient])
        return
    before = [p.detach().clone() for p in model.parameters()]
    move(model, optimizer, gradient)
    with torch.no_grad():
        for p, start in zip(model.parameters(), before, strict=True):
            p.copy_(start + w * (p - start))


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


def joint(
    forget_loss: Callable[[nn.Module, nn.Module, Batch, Any], Tensor], keeps: bool = True
) -> Any:
    """One optimizer on weight * U + retain_weight * L_r."""

    def oracle(
        model: nn.Module, s: Any, batches: list[tuple[Batch, Batch]], weight: Weight
    ) -> None:
        reference, optimizer = copy.deepcopy(model), optimizer_for(model, s)
        for retain, forget in batches:
            w = weight(ce(model, forget))
            parts = [w * forget_loss(model, reference, forget, s)] if w > 0 else []
            parts += [s.retain_weight * ce(model, retain)] if keeps else []
            if parts:
                move(model, optimizer, grads(sum(parts), model))

    return oracle


def dual(retain_sam: bool, forget_sam: bool) -> Any:
    """Algorithm 1, with either perturbation left out."""

    def oracle(
        model: nn.Module, s: Any, batches: list[tuple[Batch, Batch]], weight: Weight
    ) -> None:
        retain_side, forget_side = optimizer_for(model, s), forget_optimizer_for(model, s)
        for retain, forget in batches:
            g_r, g_f = grads(ce(model, retain), model), grads(ce(model, forget), model)
            value = ce(model, forget).detach()
            if retain_sam:
                _, g_r = at_distance(model, g_r, s.rho_retain, lambda r=retain: ce(model, r))
            if forget_sam:
                down = [-g for g in g_f]
                value, g_f = at_distance(model, down, s.rho_forget, lambda f=forget: ce(model, f))
            w = weight(value)
            if w > 0:
                weighted_move(model, forget_side, [-g for g in g_f], w, s)
            move(model, retain_side, g_r)

    return oracle


def sharp_min_max(
    model: nn.Module, s: Any, batches: list[tuple[Batch, Batch]], weight: Weight
) -> None:
    retain_side, forget_side = optimizer_for(model, s), forget_optimizer_for(model, s)

    def retain_gradient(retain: Batch) -> Grads:
        g = grads(ce(model, retain), model)
        _, hat = at_distance(model, g, s.rho_retain, lambda: ce(model, retain))
        return combine(g, hat, 1 - s.kappa, s.kappa)

    def forget_gradient(forget: Batch) -> Grads:
        g = grads(-ce(model, forget), model)
        _, hat = at_distance(model, g, s.rho_forget, lambda: -ce(model, forget))
        return combine(g, hat, 1 + s.kappa, -s.kappa)

    for retain, forget in batches:
        kept = retain_gradient(retain)
        if s.order == "sequential":
            move(model, retain_side, kept)
        w = weight(ce(model, forget))
        if w > 0:
            weighted_move(model, forget_side, forget_gradient(forget), w, s)
        if s.order == "simultaneous":
            move(model, retain_side, kept)


def relearning(
    model: nn.Module, s: Any, batches: list[tuple[Batch, Batch]], weight: Weight
) -> None:
    reference, optimizer = copy.deepcopy(model), optimizer_for(model, s)
    for retain, forget in batches:
        g_r = grads(s.retain_weight * ce(model, retain), model)

        def loss(data: Batch = forget) -> Tensor:
            return npo_by_hand(model, reference, data, s.beta)

        _, hat = at_distance(model, grads(loss(), model), s.rho_forget, loss)
        w = weight(ce(model, forget))
        move(model, optimizer, combine(g_r, hat, 1.0, w) if w > 0 else g_r)


def blur(model: nn.Module, s: Any, batches: list[tuple[Batch, Batch]], weight: Weight) -> None:
    reference, optimizer = copy.deepcopy(model), optimizer_for(model, s)
    for retain, forget in batches:
        g_r = grads(ce(model, retain), model)
        g_u = grads(npo_by_hand(model, reference, forget, s.beta), model)
        gamma = weight(ce(model, forget))
        xi = gamma - dot(g_r, g_u) / dot(g_u, g_u)
        move(model, optimizer, combine(g_r, g_u, 1.0, xi) if gamma > 0 else g_r)


def pdu(model: nn.Module, s: Any, batches: list[tuple[Batch, Batch]], weight: Weight) -> None:
    optimizer, nu = optimizer_for(model, s), s.retain_multiplier
    for retain, forget in batches:
        w, kept = weight(ce(model, forget)), ce(model, retain)
        loss = w * flattening_by_hand(model, forget) + nu * kept
        if w > 0 or nu > 0:
            move(model, optimizer, grads(loss, model))
        nu = max(nu + s.dual_lr * (kept.item() - s.epsilon), 0.0)


ascent = joint(lambda m, ref, data, s: -ce(m, data))

ORACLES = {
    "grad_ascent": joint(lambda m, ref, data, s: -ce(m, data), keeps=False),
    "grad_diff": ascent,
    "npo": joint(lambda m, ref, data, s: npo_by_hand(m, ref, data, s.beta)),
    "simnpo": joint(lambda m, ref, data, s: simnpo_by_hand(m, data, s.beta, s.margin)),
    "single_adamw": ascent,
    "dual_adamw": dual(retain_sam=False, forget_sam=False),
    "sharp_min_max": sharp_min_max,
    "relearning_resilient": relearning,
    "blur": blur,
    "pdu": pdu,
    "saul": dual(retain_sam=True, forget_sam=True),
    "saul_no_alm": dual(retain_sam=True, forget_sam=True),
    "saul_no_sam": dual(retain_sam=True, forget_sam=False),
    "saul_no_alm_no_sam": dual(retain_sam=True, forget_sam=False),
}
