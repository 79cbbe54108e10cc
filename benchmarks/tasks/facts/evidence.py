"""Tables of recorded runs: `python -m benchmarks.tasks.facts.evidence` writes docs/tables.md."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from scipy.stats import t as student

from benchmarks import methods

ROOT = Path(__file__).resolve().parents[3]
RUNS = ROOT / "benchmarks" / "results" / "facts" / "runs.jsonl"
NUMBERS = {
    "forget_said": "forget, %",
    "reworded_said": "reworded, %",
    "retain_said": "retain, %",
    "neighbours_said": "unseen, %",
    "forget_loss": "gold loss, nats",
    "perplexity": "prose",
    "relearned_said": "relearned, %",
    "pushed": "pushed, %",
    "seconds_per_step": "s a step",
}


def main() -> None:
    """Write both pages of evidence from their templates beside this file."""
    runs = pd.read_json(RUNS, lines=True)
    study = runs[(runs.draw > 0) & runs.kind.isna() & (runs.overrides.map(len) == 0)]
    every = means(study, "method")
    short = every.iloc[:7, :5]
    found = {"SHORT": short, "MEANS": every, "PAIRS": pairs(study), "SEARCH": search(runs)}
    for page in ("results", "tables"):
        text = Path(__file__).with_name(f"{page}.md.in").read_text(encoding="utf-8")
        for name, table in found.items():
            text = text.replace(f"@{name}@", table.to_markdown(disable_numparse=True))
        (ROOT / "docs" / f"{page}.md").write_text(text, encoding="utf-8")


def means(runs: pd.DataFrame, by: str) -> pd.DataFrame:
    """The mean over draws of every number, and how many draws there are."""
    grouped = runs.groupby(by, sort=False)
    found = grouped[list(NUMBERS)].mean().rename(columns=NUMBERS)
    for name in found:
        scale, digits = (100, 0) if name.endswith("%") else (1, 2)
        found[name] = (found[name] * scale).map(f"{{:.{digits}f}}".format)
    found.insert(0, "draws", grouped.draw.count())
    return found.rename(index=methods.label if by == "method" else str)


def pairs(runs: pd.DataFrame) -> pd.DataFrame:
    """What `+ALM` changes, and what SAM does: mean differences by draw, with 95 % intervals."""
    keys = runs.method.unique()
    wanted = {methods.label(key): (f"{key}+alm", key) for key in keys}
    wanted["SAM on both sides"] = ("saul", "dual_adamw+alm")
    wanted["SAM on the forget side"] = ("saul", "saul_no_sam")
    found = {
        label: {name: difference(runs, key, *pair) for key, name in list(NUMBERS.items())[:7]}
        for label, pair in wanted.items()
        if set(pair) <= set(keys)
    }
    return pd.DataFrame(found).T


def difference(runs: pd.DataFrame, number: str, more: str, less: str) -> str:
    """The mean over the draws that both have of more - less, and Student's interval."""
    wide = runs.pivot(index="draw", columns="method", values=number)
    found = (wide[more] - wide[less]).dropna()
    scale, digits = (100, 0) if NUMBERS[number].endswith("%") else (1, 2)
    mean = f"{scale * found.mean():+.{digits}f}"
    if len(found) == 1:
        return mean
    half = student.ppf(0.975, len(found) - 1) * found.sem()
    return f"{mean} ± {scale * half:.{digits}f}"


def search(runs: pd.DataFrame) -> pd.DataFrame:
    """The settings that were tried on the draw that is not reported."""
    tuning = runs[runs.draw == 0].copy()
    texts = tuning.overrides.map(lambda o: ", ".join(f"{k} {v}" for k, v in o.items()))
    tuning["setting"] = tuning.method.map(methods.label) + ", " + texts.replace("", "as the study")
    return means(tuning, "setting")


if __name__ == "__main__":
    main()
