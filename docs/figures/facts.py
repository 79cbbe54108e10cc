"""Forgotten against kept on a published model, a point a run: `python -m docs.figures.facts`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from docs.figures import themes

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "facts"
SHAPES = {"retain_only": "*", "dual_adamw": "o", "npo": "s", "saul": "D", "saul_no_sam": "v"}
SHAPES |= {"command": "P"}
NAMES = ["retain side alone", "Dual AdamW", "NPO", "SAUL", "SAUL, plain forget side", "command"]


def figure(colours: dict[str, str]) -> Figure:
    """Blue points have the constraint; a line joins them to the same draw without it."""
    runs, command = (pd.read_json(RESULTS / f"{n}.jsonl", lines=True) for n in ("runs", "command"))
    runs = runs[(runs.draw > 0) & runs.kind.isna() & (runs.overrides.map(len) == 0)]
    runs = pd.concat([runs, command.assign(method="command")])
    runs["x"], runs["y"] = 100 * (1 - runs.forget_said), 100 * runs.neighbours_said
    drawn = Figure(figsize=(6.6, 5.6), layout="constrained")
    axes = drawn.subplots()
    axes.set(xlabel="facts to forget, no longer said (%)", ylabel="unseen facts, still said (%)")
    for key, shape in SHAPES.items():
        of_method = runs[runs.method.str.removesuffix("+alm") == key]
        for _, pair in of_method.groupby("draw"):
            axes.plot(pair.x, pair.y, color=colours["soft"], lw=1.0, zorder=1)
        for run in of_method.itertuples():
            controlled = run.method.endswith("+alm") or key.startswith(("saul", "command"))
            colour = colours["retain"] if controlled else colours["forget"]
            axes.scatter(run.x, run.y, color=colour, marker=shape, s=45, alpha=0.8, zorder=2)
    for shape, name in zip(SHAPES.values(), NAMES, strict=True):
        axes.scatter([], [], color=colours["ink"], marker=shape, label=name)
    axes.scatter([], [], color=colours["retain"], marker="o", label="with the constraint")
    drawn.legend(loc="outside upper left", ncols=2, fontsize=13, columnspacing=1.0)
    return drawn


if __name__ == "__main__":
    themes.save("facts", figure)
