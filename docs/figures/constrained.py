"""Objective, measure and multiplier of each example of the gallery."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.studies.constrained.gallery import EXAMPLES, trained
from benchmarks.studies.constrained.trace import Trace

NAMES = tuple(EXAMPLES)
LINES = ("-", "--", ":")


def figure(name: str, colours: dict[str, str]) -> Figure:
    """The drawing of one example."""
    trace = trained(name)
    drawn = Figure(figsize=(7.2, 5.4), layout="constrained")
    objective, measured, multiplier = drawn.subplots(3, 1, sharex=True)
    objective.plot(trace.objective, color=colours["ink"])
    objective.set_title("objective", loc="left")
    objective.set_ylim(*_limits(trace.objective))
    _measured(measured, trace, colours)
    many = len(trace.constraints) > 1
    for line, values in zip(LINES, trace.multiplier.values(), strict=False):
        highest = max(map(abs, values)) if many else 1
        multiplier.plot([v / highest for v in values], color=colours["retain"], ls=line)
    multiplier.set_title("multipliers, over their largest" if many else "multiplier λ", loc="left")
    multiplier.set(xlabel="step", xlim=(0, len(trace.objective)))
    return drawn


def _measured(axes: Axes, trace: Trace, colours: dict[str, str]) -> None:
    """Draw what is measured, and what was asked for; several constraints over their thresholds."""
    many = len(trace.constraints) > 1
    for line, (name, values) in zip(LINES, trace.measured.items(), strict=False):
        constraint = trace.constraints[name]
        alpha = float(constraint.alpha)
        label = f"{name} {constraint.sense} {alpha:g}"
        shown = [v / alpha for v in values] if many else values
        axes.plot(shown, color=colours["forget"], ls=line, label=label if many else None)
        axes.set_title("measures over their thresholds" if many else label, loc="left")
    axes.axhline(1 if many else alpha, color=colours["ink"], lw=1.2, ls="--")
    if many:
        axes.set_ylim(0.5, 2.2)
        axes.legend(loc="upper right", ncols=3, fontsize="small")


def _limits(values: list[float]) -> tuple[float, float]:
    """Show where it ends well: the first twentieth may lie outside."""
    shown = values[len(values) // 20 :]
    margin = 0.1 * (max(shown) - min(shown))
    return min(shown) - margin, max(shown) + margin


def alt(name: str) -> str:
    """Describe the drawing."""
    return (
        f"Three panels over 1,000 steps of the example {name}: the objective; what is measured, "
        "which comes to a dashed line at the threshold and stays there; and the multiplier, which "
        "moves until the constraint holds and then stays where it balances the objective."
    )
