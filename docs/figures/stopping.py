"""A fixed weight runs away; a constraint stops: the program of the quickstart, drawn.

python -m docs.figures.stopping
"""

import contextlib
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure

from docs.figures import themes
from torch_alm import DualOptimizer

QUICKSTART = Path(__file__).resolve().parents[1] / "quickstart.md"
STEPS = 400


class Run(NamedTuple):
    """The numbers of one run, per step; the weight is empty without a constraint."""

    forget: list[float]
    weight: list[float]


def begun() -> dict[str, Any]:
    """Run the page's blocks from the model to the optimizer; return their names."""
    _, *blocks = re.findall(r"```python[^\n]*\n(.*?)```", QUICKSTART.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec("".join(blocks[:3]), names)
    return names


def trained(*, constrained: bool) -> Run:
    """Run the page's loop with its constraint, or with the fixed weight 1."""
    found = begun()
    model, loss, optimizer = found["model"], found["token_nll"], found["optimizer"]
    if not constrained:
        optimizer = DualOptimizer(optimizer.retain, optimizer.forget)
    run = Run([], [])
    for _ in range(STEPS):
        optimizer.backward(
            retain=lambda: loss(model, found["retain"]), forget=lambda: loss(model, found["forget"])
        )
        optimizer.step()
        optimizer.zero_grad()
        if constrained:
            run.weight.append(float(optimizer.constraint.metrics()["weight"]))
        with torch.no_grad():
            run.forget.append(loss(model, found["forget"]).item())
    return run


def figure(colours: dict[str, str]) -> Figure:
    """The drawing."""
    free, held = (trained(constrained=constrained) for constrained in (False, True))
    drawn = Figure(figsize=(6.4, 5.2), layout="constrained")
    loss, weight = drawn.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    steps = range(1, STEPS + 1)
    loss.plot(steps, free.forget, color=colours["forget"], label="fixed weight")
    loss.plot(steps, held.forget, color=colours["retain"], label="constraint")
    loss.axhline(4.0, color=colours["ink"], lw=1.2, ls="--", label="alpha = 4")
    loss.set_title("forget loss (nats)", loc="left")
    loss.set(ylim=(0, 9), xlim=(1, STEPS))
    loss.legend(loc="upper left")
    weight.plot(steps, held.weight, color=colours["retain"])
    weight.set_title("weight λ⁺ of the forget side", loc="left")
    weight.set(xlabel="step", ylim=(0, None))
    closed = max(step for step, w in zip(steps, held.weight, strict=True) if w > 0)
    weight.axvspan(1, closed, color=colours["soft"], alpha=0.3, lw=0)
    return drawn


if __name__ == "__main__":
    themes.save("stopping", figure)
