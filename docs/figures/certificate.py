"""The certificate's bound on a token beside the error that it bounds."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

from torch_alm.measures import margin_surrogate

TAUS = {0.05: "-", 0.1: "--", 0.3: "-.", 1.0: ":"}


def alt() -> str:
    """Describe the drawing."""
    return (
        "Over the margin of a token from -1 to 1: the error, which is 1 up to margin 0 and 0 "
        f"beyond, and below it the bound for tau of {', '.join(map(str, TAUS))}. The smaller tau, "
        "the closer the bound comes to 1 on the left and the steeper it falls on the right."
    )


def figure(colours: dict[str, str]) -> Figure:
    """The drawing."""
    drawn = Figure(figsize=(6.6, 4.4), layout="constrained")
    axes = drawn.subplots()
    margin = torch.linspace(-1, 1, 401, dtype=torch.float64)
    axes.plot([-1, 0], [1, 1], color=colours["ink"], lw=3, label="error $1[m \\leq 0]$")
    axes.plot([0, 1], [0, 0], color=colours["ink"], lw=3)
    for tau, look in TAUS.items():
        bound = margin_surrogate(margin, tau=tau)
        axes.plot(margin, bound, look, color=colours["forget"], label=f"$\\tau$ = {tau:g}")
    axes.axhline(0, color=colours["soft"], lw=0.8)
    axes.set(
        xlim=(-1, 1), ylim=(-1.6, 1.15), xlabel="margin m of a token", ylabel="$\\varphi_\\tau(m)$"
    )
    axes.legend(loc="lower left")
    return drawn
