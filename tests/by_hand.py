"""The trainers' runs by hand, from the micro-batches that they saw; nothing of ours is imported.

A step is a list of micro-batches, a micro-batch one batch per rank. Its objective is the mean over
ranks of the losses.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests import oracle

Step = Sequence[Sequence[Any]]
Gradient = list[Tensor | None]


def by_token(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The mean over all labelled tokens: the Trainer's loss."""
    logits = model(input_ids=batch["input_ids"]).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def by_example(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The mean over examples of their token means: the measure."""
    pairs = zip(batch["input_ids"], batch["labels"], strict=True)
    each = [by_token(model, {"input_ids": i[None], "labels": t[None]}) for i, t in pairs]
    return torch.stack(each).mean()


def objectives(
    model: nn.Module, step: Step, side: str, loss: Callable[..., Tensor]
) -> list[Callable[[], Tensor]]:
    """One per micro-batch."""

    def objective(micro: Sequence[Any]) -> Tensor:
        parts = [batch[side] if side else batch for batch in micro]
        return torch.stack([loss(model, part) for part in parts]).mean()

    return [lambda micro=micro: objective(micro) for micro in step]


def clipped(g: Gradient, limit: float) -> Gradient:
    """By the joint norm; 0 for no limit."""
    norm = torch.sqrt(sum((x.square().sum() for x in g if x is not None), torch.tensor(0.0)))
    factor = min(1.0, limit / (norm.item() + 1e-6)) if limit else 1.0
    return [None if x is None else x * factor for x in g]


def saul(
    model: nn.Module, steps: Sequence[Step], rates: Sequence[float], limit: float, **terms: float
) -> list[float]:
    """Algorithm 1 with a schedule on both sides and each side clipped; returns lambda+ per step."""
    theta = list(model.parameters())
    s_r, s_f = oracle.AdamW(0.0, terms["decay"]), oracle.AdamW(0.0)
    multiplier, weights = 0.0, []
    for step, s_r.lr in zip(steps, rates, strict=True):
        s_f.lr = s_r.lr
        retain = objectives(model, step, "retain", by_token)
        forget = objectives(model, step, "forget", by_example)
        g_r, _ = oracle.mean([oracle.grad_sam(f, theta, terms["rho"], +1.0) for f in retain])
        g_f, value = oracle.mean([oracle.grad_sam(f, theta, terms["rho"], -1.0) for f in forget])
        multiplier = max(multiplier + terms["mu"] * (terms["alpha"] - value), 0.0)
        if multiplier > 0:
            g_f = clipped(g_f, limit)
            s_f.step(theta, [None if x is None else -multiplier * x for x in g_f])
        s_r.step(theta, clipped(g_r, limit))
        weights.append(multiplier)
    return weights


def alm(
    model: nn.Module, steps: Sequence[Step], rates: Sequence[float], limit: float, **terms: float
) -> list[float]:
    """Retain plus penalty, whose gradient is [lambda + mu c]_+ grad c; returns lambda+ per step."""
    theta = list(model.parameters())
    s, multiplier, weights = oracle.AdamW(0.0, terms["decay"]), 0.0, []
    for step, s.lr in zip(steps, rates, strict=True):
        parts, seen = [], []
        for retain, forget in zip(
            objectives(model, step, "retain", by_token),
            objectives(model, step, "forget", by_example),
            strict=True,
        ):
            g, _ = oracle.gradient(retain, theta)
            g_f, value = oracle.gradient(forget, theta)
            price = max(multiplier + terms["mu"] * (terms["alpha"] - value), 0.0)
            both = [x if y is None else x - price * y for x, y in zip(g, g_f, strict=True)]
            parts.append((both, 0.0))
            seen.append(value)
        multiplier = max(multiplier + terms["mu"] * (terms["alpha"] - sum(seen) / len(seen)), 0.0)
        s.step(theta, clipped(oracle.mean(parts)[0], limit))
        weights.append(multiplier)
    return weights


def by_sum(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The sum over all labelled tokens."""
    return by_token(model, batch) * labelled(batch)


def labelled(batch: dict[str, Tensor]) -> int:
    return int((batch["labels"][:, 1:] != -100).sum())


def sam(
    model: nn.Module, steps: Sequence[Step], rates: Sequence[float], limit: float, **terms: float
) -> None:
    """SAM on single batches; the loss is a mean over the tokens of all batches of the step."""
    theta = list(model.parameters())
    s = oracle.AdamW(0.0, terms["decay"])
    for step, s.lr in zip(steps, rates, strict=True):
        total = sum(labelled(batch) for micro in step for batch in micro)
        means = objectives(model, step, "", by_sum)
        parts = [oracle.grad_sam(f, theta, terms["rho"], +1.0) for f in means]
        share = len(step) * len(step[0]) / total  # of sums, not means of means
        g, _ = oracle.mean(parts)
        s.step(theta, clipped([None if x is None else share * x for x in g], limit))
