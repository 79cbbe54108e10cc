"""Tables of recorded runs: `python -m benchmarks.tasks.facts.evidence` writes docs/tables.md."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import t as student

from benchmarks import methods
from benchmarks.report.results import read_lines
from benchmarks.report.tables import Column, cell, table
from benchmarks.tasks.facts.weights import NAME as PUBLISHED

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "benchmarks/results/facts"
COMMAND, LOOP = "[Command](command.md)", "[Loop](loop.md)"
TAUGHT = {"TOFU": "results", "TOFU_10": "results-10"}  # lines of the taught model
LOOKS, COSTS = ("matched", "tuned", "end"), ["steps", "passes"]
SAID = ["forget_said", "reworded_said", "retain_said", "kin_said", "neighbours_said"]
NUMBERS = [*SAID, "forget_loss", "perplexity"]
WEIGHTS = ["begun_said", "bits8_said", "bits4_said", "noise_said"]
BACK = [*WEIGHTS, "relearned_said", "others_loss", "relearned_loss"]  # what brings it back
TOFU = (  # of the model that was taught it
    Column("forget_rouge", "forget ROUGE"),
    Column("forget_exact_match", "forget exact"),
    Column("forget_loss", "forget loss"),
    Column("forget_quality_log10", "log FQ", 1),
    Column("retain_rouge", "retain ROUGE"),
    Column("retain_loss", "retain loss"),
    Column("real_authors_rouge", "authors"),
    Column("world_facts_rouge", "facts"),
    Column("rouge_hm", "HM"),
    Column("model_utility", "MU"),
    Column("gate_open", "pushed"),
)
SHORT = ("dual_adamw", "dual_adamw+alm", "npo", "npo+alm", "saul")


def main() -> None:
    """Write both pages of evidence from their templates beside this file."""
    runs = list_looks(read_lines(RESULTS / "runs.jsonl"))
    files = {COMMAND: RESULTS / "command.jsonl", LOOP: RESULTS / "loop.jsonl"}
    told = [{"name": name, **line} for name in files for line in read_lines(files[name])]
    others, found = pd.DataFrame(told), {}
    for model, name in ((PUBLISHED, "SMOLLM2"), ("gemma-3-270m", "GEMMA")):
        of_model = runs[(runs.model == model) & (runs.draw > 0)]
        at = {look: of_model[of_model["look"] == look] for look in LOOKS}
        found[f"{name}_MATCHED"] = means(at["matched"], COSTS + NUMBERS)
        found[f"{name}_BACK"] = means(at["matched"], BACK)
        found[f"{name}_END"] = means(at["end"], NUMBERS)
        found[f"{name}_PAIRS"] = pairs(at)
        if name == "SMOLLM2":
            short = at["matched"][at["matched"].method.isin(SHORT)]
            control = at["end"][at["end"].method == methods.CONTROL]
            short = pd.concat([others[others.model == PUBLISHED], control, short])
            found["SHORT"] = means(short, ["steps", *SAID, "forget_loss", "relearned_said"])
    found["COMMAND"] = list_runs(others)
    for name, file in TAUGHT.items():
        lines = read_lines(RESULTS.with_name("taught") / f"{file}.jsonl")
        found[name] = table(lines, TOFU).replace(" ± ", "±", regex=True)
    for page in ("results", "tables"):
        text = Path(__file__).with_name(f"{page}.md.in").read_text(encoding="utf-8")
        for name, frame in found.items():
            rows = frame.to_markdown(disable_numparse=True) if len(frame) else "No runs yet."
            text = text.replace(f"@{name}@", re.sub(r"(?<=:-)-+| *(\|) *", r"\1", rows))
        (ROOT / "docs" / f"{page}.md").write_text(text, encoding="utf-8")


def heading(key: str) -> str:
    """The head of a column; shares are in percent."""
    return key.replace("neighbours", "unseen").replace("_said", ", %").replace("_loss", ", nats")


def list_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for every run."""
    heads = ["name", "model", "draw", "code", "steps", "minutes", "GB", *SAID, "relearned_said"]
    found = runs[[key for key in heads if key in runs]].rename(columns=heading).set_index("name")
    shares = [name for name in found if name.endswith("%")]
    found[shares] = (100 * found[shares]).round()
    return found.map(lambda x: x if isinstance(x, str) else f"{x:.3g}".replace("nan", ""))


def list_looks(lines: list[dict[str, Any]]) -> pd.DataFrame:
    """A row for every look at a run: which one, what was run, its numbers; none if it had none."""
    known = ("model", "method", "draw")
    rows = [
        {"look": x, **{k: line[k] for k in known}, **(line[x] or {})}
        for line in lines
        for x in LOOKS
    ]
    found = pd.DataFrame(rows)
    return found.assign(name=found.method.map(method_name))


def method_name(key: str) -> str:
    """A method as it is called in tables, with SAM's radius and side."""
    plain, _, sharp = key.partition("@")
    return methods.label(plain) + (f", {sharp.replace('/', ' nats, ')}" if sharp else "")


def means(runs: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The mean over draws of the runs that got there, with its standard deviation; how many did."""
    rows, heads = {}, {key: heading(key) for key in keys if key in runs}
    for name, group in runs.groupby("name", sort=False):
        there = group[group.forget_said.notna()]
        rows[name] = {"draws": f"{len(there)}/{len(group)}"}
        rows[name] |= {head: format_mean(there[key], head) for key, head in heads.items()}
    return pd.DataFrame.from_dict(rows, orient="index")


def format_mean(values: pd.Series, head: str) -> str:
    """Mean and standard deviation over draws, if all have it; in per cent if the head says so."""
    scale, digits = (100, 0) if head.endswith("%") else (1, 0 if head in COSTS else 2)
    mean, deviation = values.mean(skipna=False), values.std(skipna=False)
    return cell(scale * mean, scale * deviation, digits).replace(" ± ", "±")


def pairs(at: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Mean differences on the same draws, with 95 % intervals: the constraint against three ways.

    Against the same method stopped when hardly a fact is said, after the steps that draw 0 says,
    and at the end of a run that nobody stopped, where the constraint's run ends, too.
    """
    rows = {}
    for alm in [name for name in at["end"].name.unique() if " + ALM" in name or name == "SAUL"]:
        plain = "SAUL w/o ALM" if alm == "SAUL" else alm.removesuffix(" + ALM")
        ways = {"stopped": "matched", "tuned": "tuned", "unstopped": "end"}
        for told, look in ways.items():
            found = at["end" if look == "end" else "matched"], at[look]
            sides = [
                x[x.name == n].set_index("draw") for x, n in zip(found, (alm, plain), strict=True)
            ]
            cells = {heading(key): difference(*sides, key) for key in NUMBERS}
            if set(cells.values()) != {"–"}:
                rows[f"{plain}, {told}"] = cells
    return pd.DataFrame.from_dict(rows, orient="index")


def difference(more: pd.DataFrame, less: pd.DataFrame, number: str) -> str:
    """The mean over the draws that both have of more - less, and Student's interval."""
    both = (more[number] - less[number]).dropna() if number in more and number in less else []
    if not len(both):
        return "–"
    scale, digits = (100, 0) if number.endswith("_said") else (1, 2)
    mean = f"{scale * both.mean():+.{digits}f}"
    if len(both) < 2:
        return mean
    half = student.ppf(0.975, len(both) - 1) * both.sem()
    return f"{mean}±{scale * half:.{digits}f}"


if __name__ == "__main__":
    main()
