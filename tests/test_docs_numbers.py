"""Numbers that pages quote from recorded results are those of the results."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.studies.constrained import fairness as example
from benchmarks.studies.constrained import gallery
from docs.figures import run

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def recorded(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def ratio(method: str, models: str = "1B") -> str:
    rows = recorded("cost")["flops"]["rows"]
    (found,) = [r["ratio"] for r in rows if r["method"] == method and r["model"] == models]
    return f"{found:.2f}"


def solved(cadence: str) -> int:
    found = {recorded("controllers")[name][cadence]["1e-3"] for name in ("torch-alm", "cooper")}
    (count,) = found
    return count


def noise() -> str:
    mean, stored, _ = recorded("controllers")["filtered noise"]
    plain, share = recorded("controllers")["torch-alm"]["noise"]
    filtered = f"mean λ {mean:.3f} and a gate open on {stored:.0%} of the steps"
    return f"{filtered}, instead of {plain:.1f} and {share:.0%}".replace("%", " %")


def automatic(way: str) -> str:
    """Cells of the first table that a way of choosing mu solves, such as "7 of 9"."""
    table = (RESULTS / "auto" / "auto.md").read_text()
    rows = [line for line in table.splitlines() if line.startswith(f"| {way}") and "%" in line]
    return rows[0].split(" | ")[1].partition(",")[0]


def ways() -> str:
    single, best = (
        automatic(f"the best {which}").partition(" ")[0]
        for which in ("single mu", "mu per problem")
    )
    return (
        f"it solves {automatic('the rule, nothing tuned')} cells (a problem with an optimizer), "
        f"the best single μ {single}, the best μ per problem {best}"
    )


def fairness() -> str:
    """The end of the first example of constraints, without its constraint and with it."""
    x, label, group = example.data()
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(1000):
        optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(model(x).squeeze(1), label)
        loss.backward()
        optimizer.step()
    score = model(x).squeeze(1).sigmoid()
    gap = score[group].mean() - score[~group].mean()
    held = gallery.trained("fairness")
    return (
        f"a gap of {gap:.2f} and a loss of {loss:.2f}. The constraint holds the gap at "
        f"{held.measured['gap'][-1]:.2f}, which costs a third of a nat: the loss ends at "
        f"{held.objective[-1]:.2f}."
    )


def precision() -> str:
    """The share of the perturbation that bfloat16 weights keep: its length, times the cosine."""
    rows = recorded("precision")["rows"]
    (row,) = [r for r in rows if r["way"] == "bfloat16 weights" and r["rho"] == 0.01]
    return f"keeps about {row['length'] * row['delta']:.1%} of it".replace("%", " %")


SENTENCES = {
    "what fairness costs": ("constrain", fairness),
    "what bfloat16 keeps": ("engines", precision),
    "what a closed gate saves": (
        "choose",
        lambda: f"{ratio('Dual AdamW + ALM, gate closed, last=True')}× the operations while",
    ),
    "what a probe saves": (
        "choose",
        lambda: (
            f"{ratio('SAUL, gate closed, last=True, probe_every=8')}× the operations of Dual "
            f"AdamW while released, instead of {ratio('SAUL, gate closed, last=True')}×"
        ),
    ),
    "what cadence solves": (
        "choose",
        lambda: f"{solved('every 50')} of 21 problems to 1e-3; {solved('every step')} with",
    ),
    "what cadence does not solve": (
        "results",
        lambda: f"{solved('every step')} of 21 problems with known optima are solved to 1e-3",
    ),
    "what a filter does": ("choose", noise),
    "what mu=auto solves": ("results", ways),
    "the recorded settings": (
        "results",
        lambda: (
            "α = {alpha} nats, μ = {mu}, λ₀ = {multiplier:g}, learning rate 1e-3, "
            "ρ = {rho_retain} on both sides, batches of {batch_size}".format(
                **run.recorded()["settings"]
            )
        ),
    ),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_a_quoted_number_is_the_recorded_one(name: str) -> None:
    page, sentence = SENTENCES[name]
    text = " ".join((ROOT / "docs" / f"{page}.md").read_text().split())
    assert sentence() in text


def test_readme_has_the_utilities_that_were_recorded() -> None:
    found: dict[str, list[str]] = {}
    for name in ("forget01", "forget01-finer"):  # where a search went on, that is the one shown
        table = (RESULTS / "operating_point" / f"{name}.md").read_text()
        rows = [line.strip("| ").split(" | ") for line in table.splitlines() if "| 3e-4 |" in line]
        found |= {row[2]: row for row in rows}
    readme = (ROOT / "README.md").read_text()
    assert len(found) == 4
    for _, control, method, searched, _, asked, *_ in found.values():
        assert f"| {method} | {searched} | {asked} |" in readme
        assert f"keeps {control}." in readme


def test_the_real_run_is_told_as_its_table_has_it() -> None:
    """Retain probabilities of the methods without a brake, without and with the controller."""
    _, text = (ROOT / "benchmarks" / "README.md").read_text().split("## Real forget01")
    table = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("| `")]
    rows = {line.split("`")[1]: line.split("|") for line in table}
    unbounded = ("grad_diff", "single_adamw", "dual_adamw", "sharp_min_max")
    plain, controlled = (
        sorted(float(rows[name + alm][6]) for name in unbounded) for alm in ("", "+alm")
    )
    text = " ".join((ROOT / "docs" / "results.md").read_text().split())
    assert (
        f"ends at {controlled[0]} to {controlled[-1]} instead of {plain[0]} to {plain[-1]}" in text
    )
