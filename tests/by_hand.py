"""The trainers' runs by hand, from the micro-batches that they saw; nothing of ours is imported.

A step is a list of micro-batches, a micro-batch one batch per rank. Its objective is the mean over
ranks of the losses.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests import oracle
from tests.oracle import Gradient, clipped

Step = Sequence[Sequence[Any]]


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
) -> list[oracle.Loss]:
    """One per micro-batch."""

    def objective(micro: Sequence[Any]) -> Tensor:
        parts = [batch[side] if side else batch for batch in micro]
        return torch.stack([loss(model, part) for part in parts]).mean()

    return [lambda micro=micro: objective(micro) for micro in step]


@dataclass
class Clipping(oracle.AdamW):
    """AdamW on clipped gradients."""

    limit: float = 0.0

    def step(self, theta: Sequence[Tensor], g: Gradient) -> None:
        super().step(theta, clipped(g, self.limit))


@dataclass
class ClippingSaul(oracle.Saul):
    """Algorithm 1 whose forget gradient, too, is clipped before the multiplier scales it."""

    limit: float = 0.0

    def forget_step(self, g: Gradient, multiplier: float) -> None:
        super().forget_step(clipped(g, self.limit), multiplier)


def saul(
    model: nn.Module, steps: Sequence[Step], rates: Sequence[float], limit: float, **terms: float
) -> list[float]:
    """Algorithm 1 with a schedule on both sides and each side clipped; returns lambda+ per step."""
    theta, alpha, mu, rho = list(model.parameters()), terms["alpha"], terms["mu"], terms["rho"]
    s_r, s_f = Clipping(0.0, terms["decay"], limit=limit), oracle.AdamW(0.0)
    radii = rho, terms.get("forget_rho", rho)
    run, weights = ClippingSaul(theta, s_r, s_f, alpha, mu, 0.0, *radii, limit=limit), []
    for step, rate in zip(steps, rates, strict=True):
        s_r.lr = s_f.lr = rate
        weights.append(run.step(*both(model, step)))
    return weights


def alm(
    model: nn.Module, steps: Sequence[Step], rates: Sequence[float], limit: float, **terms: float
) -> list[float]:
    """Retain plus penalty with a schedule, clipped; returns lambda+ per step."""
    s = Clipping(0.0, terms["decay"], limit=limit)
    run = oracle.Alm(list(model.parameters()), s, terms["alpha"], terms["mu"])
    return [run.step(*both(model, step)) for step, s.lr in zip(steps, rates, strict=True)]


def both(model: nn.Module, step: Step) -> list[list[oracle.Loss]]:
    """Those of the retain and of the forget side."""
    sides = {"retain": by_token, "forget": by_example}
    return [objectives(model, step, side, loss) for side, loss in sides.items()]


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
    s = Clipping(0.0, terms["decay"], limit=limit)
    for step, s.lr in zip(steps, rates, strict=True):
        total = sum(labelled(batch) for micro in step for batch in micro)
        means = objectives(model, step, "", by_sum)
        parts = [oracle.grad_sam(f, theta, terms["rho"], +1.0) for f in means]
        share = len(step) * len(step[0]) / total  # of sums, not means of means
        g, _ = oracle.mean(parts)
        s.step(theta, [None if x is None else share * x for x in g])
