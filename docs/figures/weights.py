"""Unseen facts kept against the forget weight: `python -m docs.figures.weights`."""

from __future__ import annotations

from matplotlib.figure import Figure

from benchmarks import methods
from benchmarks.report.results import read_lines
from benchmarks.tasks.facts.evidence import CONSTRAINT, MODELS, RESULTS, collect_unseen, list_looks
from docs.figures import themes

LOOKS = {"end": "Unstopped, after 60 steps", "matched": "Stopped when hardly a fact is said"}
LINES = {  # what is drawn, its colour, its marker
    ("smollm2-135m-instruct", "grad_diff"): ("forget", "o"),
    ("embedded", "grad_diff"): ("retain", "^"),
    ("embedded", "npo"): ("ink", "s"),
}


def figure(colours: dict[str, str]) -> Figure:
    """A line a model and method; dashed, without a weight: the same with the constraint."""
    runs = list_looks([x for x in read_lines(RESULTS / "runs.jsonl") if x["draw"] > 0])
    drawn = Figure(figsize=(6.6, 7.6), layout="constrained")
    for axes, (look, title) in zip(drawn.subplots(2, sharex=True), LOOKS.items(), strict=True):
        axes.set(title=title, xscale="log", ylim=(0, 103), ylabel="unseen facts kept (%)")
        for (model, plain), (name, marker) in LINES.items():
            kept = collect_unseen(runs, model, plain, look).mean()
            if CONSTRAINT not in kept:
                continue
            held, line = kept.pop(CONSTRAINT), f"{MODELS[model]}, {methods.label(plain)}"
            axes.plot(kept.index, kept, color=colours[name], marker=marker, ms=8, label=line)
            axes.axhline(held, color=colours[name], linestyle="--")
    axes.set(xlabel="forget weight")
    axes.plot([], [], color=colours["soft"], linestyle="--", label="with the constraint")
    drawn.legend(*axes.get_legend_handles_labels(), loc="outside upper left", fontsize=13)
    return drawn


if __name__ == "__main__":
    themes.save("weights", figure)
