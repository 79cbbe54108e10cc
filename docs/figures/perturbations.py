"""The points of SAUL's two gradients: theta, theta + delta_r, theta + delta_f.

    python -m docs.figures.perturbations

draws two bowls over two weights; the library computes points, gradients and perturbations.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from torch import Tensor

from docs.figures import themes
from torch_alm import perturbed

Loss = Callable[[Tensor], Tensor]

RHO = 0.8
KEPT, REMEMBERED = torch.tensor([-1.9, -0.6]), torch.tensor([1.9, -0.9])
START = torch.tensor([0.1, 0.4])


def retain_loss(theta: Tensor) -> Tensor:
    """A bowl around the weights that know what is to be kept."""
    x, y = (theta - KEPT).unbind(-1)
    return 0.5 * x.square() + 1.2 * y.square()


def forget_loss(theta: Tensor) -> Tensor:
    """A bowl around the weights that remember best."""
    x, y = (theta - REMEMBERED).unbind(-1)
    return 0.9 * x.square() + 0.5 * y.square() - 0.5 * x * y


def nearby(loss: Loss, sign: int) -> tuple[Tensor, Tensor]:
    """theta + delta, and the gradient there."""
    theta = torch.nn.Parameter(START.clone())
    loss(theta).backward()
    with perturbed([theta], RHO, sign=sign):
        there = theta.detach().clone()
        loss(theta).backward()
    assert theta.grad is not None
    return there, theta.grad


def figure(colours: dict[str, str]) -> Figure:
    """The drawing."""
    drawn = Figure(figsize=(6.6, 4.5), layout="constrained")
    axes = drawn.subplots()
    axes.set(aspect="equal", xticks=[], yticks=[], xlim=(-3.0, 3.2), ylim=(-2.1, 2.0))
    for spine in axes.spines.values():
        spine.set_visible(False)
    contours(axes, colours)
    axes.add_patch(
        Circle(tuple(START.tolist()), RHO, fill=False, color=colours["ink"], lw=1.0, ls=":")
    )
    axes.plot(*START, "o", color=colours["ink"], ms=8)
    axes.annotate("θ", START, (-8, -20), textcoords="offset points", fontsize=16)
    side(axes, nearby(retain_loss, +1), -1.0, colours["retain"], "r", (8, 4))
    side(axes, nearby(forget_loss, -1), +1.0, colours["forget"], "f", (-54, -38))
    return drawn


def contours(axes: Axes, colours: dict[str, str]) -> None:
    """Both losses, each with its name outside of its contours."""
    grid = np.meshgrid(np.linspace(-3.0, 3.2, 160), np.linspace(-2.1, 2.0, 110))
    points = torch.tensor(np.stack(grid, axis=-1), dtype=torch.float32)
    for name, loss, at, offset in (
        ("retain", retain_loss, KEPT, (-48, -98)),
        ("forget", forget_loss, REMEMBERED, (-8, 140)),
    ):
        levels = np.array([0.08, 0.35, 0.8, 1.4])
        axes.contour(*grid, loss(points), levels, colors=colours[name], alpha=0.45, linewidths=1.1)
        axes.plot(*at, "+", color=colours[name], ms=9)
        text = f"{name} loss low"
        axes.annotate(text, at, offset, textcoords="offset points", color=colours[name])


def side(
    axes: Axes,
    found: tuple[Tensor, Tensor],
    sign: float,
    colour: str,
    name: str,
    offset: tuple[int, int],
) -> None:
    """The perturbed point, and the step that the gradient there asks of theta."""
    there, gradient = found
    axes.plot(*torch.stack([START, there]).T, "--", color=colour, lw=1.6)
    axes.plot(*there, "o", color=colour, ms=7)
    label = f"$\\theta + \\delta_{name}$"
    axes.annotate(label, there, offset, textcoords="offset points", color=colour, fontsize=16)
    end = START + sign * 1.3 * gradient / gradient.norm()
    arrow = {"arrowstyle": "-|>", "color": colour, "lw": 2.2, "mutation_scale": 18}
    axes.annotate("", end, START, arrowprops=arrow)
    words, beside = {"r": ("retain step", (26, -20)), "f": ("forget step", (-86, -4))}[name]
    axes.annotate(words, end, beside, textcoords="offset points", color=colour)


if __name__ == "__main__":
    themes.save("perturbations", figure)
