"""A fixed weight runs away; a constraint stops: the example of README, drawn.

python -m docs.figures.stopping
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from docs.figures import themes
from docs.figures.run import shade
from torch_alm import ALMConstraint
from torch_alm.rules import Leak

ALPHA, STEPS = 4.0, 200
Batch = tuple[Tensor, Tensor]


class Run(NamedTuple):
    """The numbers of one run, per step; the last two are empty without a constraint."""

    forget: list[float]
    retain: list[float]
    multiplier: list[float]
    weight: list[float]


def nll(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of a batch."""
    return cross_entropy(model(batch[0]), batch[1])


def world() -> tuple[nn.Module, Batch, Batch]:
    """A small classifier that knows 64 random labels by heart, 48 to keep and 16 to forget."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
    x, y = torch.randn(64, 16), torch.randint(4, (64,))
    optimizer = AdamW(model.parameters(), lr=1e-2)
    for _ in range(200):
        nll(model, (x, y)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, (x[:48], y[:48]), (x[48:], y[48:])


@lru_cache(maxsize=2)
def trained(*, constrained: bool) -> Run:
    """Unlearn with a constraint, or with the fixed weight 1."""
    model, retain, forget = world()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    constraint = ALMConstraint(nll, alpha=ALPHA, mu=0.01, rules=[Leak(0.5)])
    run = Run([], [], [], [])
    for _ in range(STEPS):
        kept = nll(model, retain)
        pushed = constraint(model, forget) if constrained else -nll(model, forget)
        (kept + pushed).backward()
        optimizer.step()
        optimizer.zero_grad()
        if constrained:
            run.weight.append(float(constraint.step()))
            run.multiplier.append(float(constraint.multiplier))
        run.forget.append(nll(model, forget).item())
        run.retain.append(kept.item())
    return run


def figure(colours: dict[str, str]) -> Figure:
    """The drawing."""
    free, held = (trained(constrained=constrained) for constrained in (False, True))
    drawn = Figure(figsize=(7.2, 4.8), layout="constrained")
    loss, multiplier = drawn.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    steps = range(1, STEPS + 1)
    loss.plot(steps, free.forget, color=colours["forget"], label="fixed weight")
    loss.plot(steps, held.forget, color=colours["retain"], label="constraint")
    loss.axhline(ALPHA, color=colours["ink"], lw=1.2, ls="--", label=f"α = {ALPHA:g}")
    loss.set_title("forget loss (nats)", loc="left")
    loss.set(ylim=(0, 16), xlim=(1, STEPS))
    loss.legend(loc="upper left")
    multiplier.plot(steps, held.multiplier, color=colours["retain"])
    multiplier.set_title("multiplier λ; shaded: the gate is open", loc="left")
    multiplier.set(xlabel="step", ylim=(0, None))
    shade(multiplier, held.weight, colours["soft"])
    return drawn


if __name__ == "__main__":
    themes.save("stopping", figure)
