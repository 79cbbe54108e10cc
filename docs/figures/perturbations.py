"""The points of SAUL's two gradients: theta, theta + delta_r, theta + delta_f.

    python -m docs.figures.perturbations

draws two bowls over two weights; the library computes points, gradients and perturbations.
"""

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
    drawn = Figure(figsize=(6.6, 4.4), layout="constrained")
    axes = drawn.subplots()
    axes.set(aspect="equal", xlim=(-3.7, 3.7), ylim=(-2.9, 2.0))
    axes.axis("off")
    contours(axes, retain_loss, colours["retain"], "retain loss low", (-3.4, -2.3))
    contours(axes, forget_loss, colours["forget"], "forget loss low", (1.6, 1.3))
    axes.add_patch(Circle(START.tolist(), RHO, fill=False, color=colours["ink"], lw=1.0, ls=":"))
    axes.plot(*START, "o", color=colours["ink"], ms=8)
    axes.annotate("θ", START, (-8, -20), textcoords="offset points", fontsize=16)
    side(axes, nearby(retain_loss, +1), -1.0, colours["retain"], ("r", "retain step"))
    side(axes, nearby(forget_loss, -1), +1.0, colours["forget"], ("f", "forget step"))
    return drawn


def contours(axes: Axes, loss: Loss, colour: str, words: str, at: tuple[float, float]) -> None:
    """A loss, with its name outside of its contours."""
    grid = np.meshgrid(np.linspace(-3.7, 3.7, 160), np.linspace(-2.9, 2.0, 110))
    height = loss(torch.tensor(np.stack(grid, axis=-1), dtype=torch.float32))
    levels = [0.08, 0.35, 0.8, 1.4]
    axes.contour(*grid, height, levels, colors=colour, alpha=0.45, linewidths=1.1)
    axes.text(*at, words, color=colour)


def side(
    axes: Axes, found: tuple[Tensor, Tensor], sign: float, colour: str, names: tuple[str, str]
) -> None:
    """The perturbed point, and the step that the gradient there asks of theta."""
    there, gradient = found
    end = START + sign * 1.3 * gradient / gradient.norm()
    axes.plot(*torch.stack([START, there]).T, "o--", color=colour, lw=1.6, ms=7, markevery=[1])
    axes.annotate("", end, START, arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 2.2})
    for point, words in ((there, f"$\\theta + \\delta_{names[0]}$"), (end, names[1])):
        beside = {"textcoords": "offset points", "ha": "center"}
        axes.annotate(words, point, (0, 10 if point[1] > 0.4 else -20), color=colour, **beside)


if __name__ == "__main__":
    themes.save("perturbations", figure)
