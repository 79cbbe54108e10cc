"""Forgotten against kept on published models, a point a run: `python -m docs.figures.facts`."""

from __future__ import annotations

from matplotlib.figure import Figure

from benchmarks import methods
from benchmarks.report.results import read_lines
from benchmarks.tasks.facts.evidence import RESULTS, list_looks
from docs.figures import themes

SHAPES = {"retain_only": "*", "dual_adamw": "o", "npo": "s", "simnpo": "v", "grad_diff": "^"}
SHAPES |= {"saul": "D"}
MODELS = {"smollm2-135m-instruct": "SmolLM2 135M", "gemma-3-270m": "Gemma 3 270M"}


def figure(colours: dict[str, str]) -> Figure:
    """Filled where hardly a fact is said, hollow at the end; a line joins both. Blue: + ALM."""
    lines = read_lines(RESULTS / "runs.jsonl")
    runs = list_looks([line for line in lines if line["draw"] > 0]).dropna(subset=["forget_loss"])
    shown = [model for model in MODELS if model in set(runs.model)]
    drawn = Figure(figsize=(6.6, 5.6 * max(len(shown), 1)), layout="constrained")
    for axes, model in zip(drawn.subplots(len(shown), squeeze=False).flat, shown, strict=True):
        axes.set(title=MODELS[model], xlabel="loss of the facts to forget (nats)")
        axes.set(ylabel="unseen facts, still said (%)")
        goals = [line["alpha"] for line in lines if line["model"] == model]
        axes.axvline(goals[0], color=colours["soft"], linestyle=":", zorder=0)
        for (key, _), run in runs[runs.model == model].groupby(["method", "draw"]):
            shape = SHAPES.get(key.removesuffix("_no_alm").removesuffix(methods.ALM))
            if shape is None:
                continue
            colour = colours["retain" if methods.is_controlled(key) else "forget"]
            points = run[run["look"].isin(("matched", "end"))]
            xs, ys = points.forget_loss, 100 * points.neighbours_said
            axes.plot(xs, ys, color=colours["soft"], lw=1.0, zorder=1)
            for x, y, look in zip(xs, ys, points["look"], strict=True):
                inside = colour if look == "matched" else "none"
                axes.scatter(x, y, edgecolor=colour, facecolor=inside, marker=shape, s=45, zorder=2)
    drawn_keys = set(runs.method.str.removesuffix(methods.ALM))
    for key in [key for key in SHAPES if key in drawn_keys]:
        axes.scatter([], [], color=colours["ink"], marker=SHAPES[key], label=methods.label(key))
    axes.scatter([], [], color=colours["retain"], marker="o", label="with the constraint")
    axes.axvline(goals[0], color=colours["soft"], linestyle=":", label="the goal")
    drawn.legend(loc="outside upper left", ncols=2, fontsize=13, columnspacing=1.0)
    return drawn


if __name__ == "__main__":
    themes.save("facts", figure)
