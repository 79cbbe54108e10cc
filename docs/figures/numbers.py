"""The four numbers of the recipe, each too small and too large: `python -m docs.figures.numbers`.

The program is that of README: sixty examples learned by heart, twelve to forget, forty to keep,
and eight unlisted ones, which are in neither set.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch.optim import AdamW

from docs.figures import themes
from torch_alm import ALMConstraint, DualOptimizer
from torch_alm.rules import Leak
from torch_alm.thresholds import radius_for, rate_for

README = Path(__file__).resolve().parents[2] / "README.md"
STEPS, RATE = 400, 1e-3
ALPHAS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0)
MUS = (1e-4, 1e-2, 1.0)
CHANGES = (0.01, 0.03, 0.1, 0.3, 1.0)
RADII = (1e-3, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 1.5)

Colours = dict[str, str]
Loss = Callable[[], torch.Tensor]


def run_program() -> tuple[list[torch.Tensor], Loss, Loss, Loss]:
    """Run README's block up to its optimizer; return weights and forget, retain, unlisted loss."""
    block = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[0]
    names: dict[str, Any] = {"print": lambda _: None}
    exec(block.partition("optimizer = ")[0], names)
    forget, keep, unlisted = (
        lambda rows=names[name]: names["loss"](rows) for name in ("forget", "keep", "unlisted")
    )
    return names["params"], forget, keep, unlisted


def train_dual(alpha: float = 4.0, change: float | None = None) -> tuple[float, float]:
    """Train with README's constraint; return forget and unlisted loss after the last step."""
    params, forget, keep, unlisted = run_program()
    rate = RATE if change is None else rate_for(AdamW(params), _log_odds(forget), change=change)
    optimizer = DualOptimizer(
        *(AdamW(params, lr=rate, weight_decay=0.0) for _ in range(2)),
        ALMConstraint(None, alpha=alpha, mu=0.01, rules=[Leak(0.5)]),
    )
    for _ in range(STEPS):
        optimizer.backward(retain=keep, forget=forget)
        optimizer.step()
        optimizer.zero_grad()
    return forget().item(), unlisted().item()


def train_joint(mu: float | None) -> list[float]:
    """Train one optimizer on both losses, with the constraint or the weight 1: forget losses."""
    params, forget, keep, _ = run_program()
    optimizer = AdamW(params, lr=RATE, weight_decay=0.0)
    constraint = ALMConstraint(forget, alpha=4.0, mu=mu or 1.0, rules=[Leak(0.5)])
    losses: list[float] = []
    for _ in range(STEPS // 2):
        (keep() + (constraint() if mu else -forget())).backward()
        optimizer.step()
        optimizer.zero_grad()
        if mu:
            constraint.step()
        losses.append(forget().item())
    return losses


def _log_odds(loss: Loss) -> Loss:
    return lambda: -loss().expm1().log()


def draw_alpha(axes: Axes, colours: Colours) -> None:
    """Forget and unlisted loss at the end, for each alpha."""
    _draw_ends(axes, colours, ALPHAS, [train_dual(alpha=alpha) for alpha in ALPHAS])
    axes.set(xlabel="alpha (nats)")


def draw_rate(axes: Axes, colours: Colours) -> None:
    """Forget and unlisted loss at the end, for each rate."""
    _draw_ends(axes, colours, CHANGES, [train_dual(change=change) for change in CHANGES])
    axes.set(xlabel="log-odds that a step takes (nats)", xscale="log")


def draw_mu(axes: Axes, colours: Colours) -> None:
    """The forget loss over the steps, for each mu and for a fixed weight."""
    axes.plot(train_joint(None), color=colours["forget"], label="fixed weight")
    for mu, style in zip(MUS, (":", "-", "--"), strict=True):
        axes.plot(train_joint(mu), style, color=colours["retain"], label=f"mu = {mu:g}")
    axes.axhline(4.0, color=colours["ink"], lw=1.2, ls="--")
    axes.set(xlabel="step", ylabel="forget loss (nats)", ylim=(0, 12))
    axes.legend(loc="upper left")


def draw_rho(axes: Axes, colours: Colours) -> None:
    """Both losses at the point where SAM, and ReverseSAM, take the gradient."""
    params, forget, keep, _ = run_program()
    learner = AdamW(params, lr=RATE)
    while forget() < 4.0:
        learner.zero_grad()
        (keep() - forget()).backward()
        learner.step()
    for loss, sign, colour, name in (
        (forget, -1, "forget", "forget loss, ReverseSAM"),
        (keep, 1, "retain", "retain loss, SAM"),
    ):
        losses = [_perturb(params, loss, sign * rho) for rho in RADII]
        axes.plot(RADII, losses, color=colours[colour], label=name)
    for change in (0.1, 0.5):
        axes.axvline(radius_for(params, forget, change=change).value, color=colours["soft"], ls=":")
    axes.set(xlabel="rho", ylabel="loss there (nats)", xscale="log")
    axes.legend(loc="center left")


def _perturb(params: list[torch.Tensor], loss: Loss, rho: float) -> float:
    """Return the loss at a distance rho along its gradient, and put the weights back."""
    gradients = torch.autograd.grad(loss(), params)
    length = torch.stack([g.norm() for g in gradients]).norm()
    saved = [p.detach().clone() for p in params]
    with torch.no_grad():
        for p, g in zip(params, gradients, strict=True):
            p.add_(g * (rho / length))
        found = loss().item()
        for p, s in zip(params, saved, strict=True):
            p.copy_(s)
    return found


def _draw_ends(
    axes: Axes, colours: Colours, xs: tuple[float, ...], ends: list[tuple[float, float]]
) -> None:
    for i, (name, colour) in enumerate((("forget", "forget"), ("unlisted", "retain"))):
        axes.plot(xs, [end[i] for end in ends], "o-", color=colours[colour], label=name)
    axes.set(ylabel="loss at the end (nats)")
    axes.legend(loc="upper left")


def draw(colours: Colours, number: str) -> Figure:
    """The drawing of a number."""
    drawn = Figure(figsize=(6.4, 4.0), layout="constrained")
    globals()[f"draw_{number}"](drawn.subplots(), colours)
    return drawn


if __name__ == "__main__":
    for number in ("alpha", "mu", "rate", "rho"):
        themes.save(f"numbers-{number}", partial(draw, number=number))
