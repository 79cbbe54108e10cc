"""Tables of recorded runs: `python -m benchmarks.tasks.facts.evidence` writes docs/tables.md."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import t as student

from benchmarks import methods
from benchmarks.report.results import read_lines
from benchmarks.report.tables import Column, table

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "benchmarks" / "results" / "facts"
COMMAND, LOOP = "`torch-alm unlearn`", "the loop of the page"
TAUGHT = RESULTS.with_name("taught") / "results.jsonl"
NUMBERS = {
    "steps": "steps",
    "passes": "passes",
    "forget_said": "forget, %",
    "reworded_said": "reworded, %",
    "retain_said": "retain, %",
    "kin_said": "kin, %",
    "neighbours_said": "unseen, %",
    "forget_loss": "loss, nats",
    "perplexity": "prose",
}
BACK = {
    "begun_said": "begun, %",
    "bits8_said": "8 bits, %",
    "bits4_said": "4 bits, %",
    "noise_said": "noise, %",
    "relearned_said": "relearned, %",
    "others_loss": "others before, nats",
    "relearned_loss": "others after, nats",
}
"""What brings the forgotten back."""
TOFU = (
    Column("forget_rouge", "forget ROUGE"),
    Column("forget_exact_match", "forget exact"),
    Column("forget_loss", "forget loss"),
    Column("forget_quality_log10", "log FQ", 1),
    Column("retain_rouge", "retain ROUGE"),
    Column("retain_loss", "retain loss"),
    Column("real_authors_rouge", "authors"),
    Column("world_facts_rouge", "facts"),
    Column("model_utility", "MU"),
    Column("gate_open", "pushed"),
)
"""What is shown of the taught model."""
SHORT = ("dual_adamw", "dual_adamw+alm", "npo", "npo+alm", "grad_diff+alm", "saul")
"""Methods of the short page, beside the command and the control."""
SHORT_NUMBERS = ("steps", "forget_said", "reworded_said", "kin_said", "neighbours_said")


def main() -> None:
    """Write both pages of evidence from their templates beside this file."""
    runs = looks(read_lines(RESULTS / "runs.jsonl"))
    command = pd.DataFrame(read_lines(RESULTS / "command.jsonl"))
    found = {"COMMAND": commanded(command), "SHORT": short(runs, command)}
    for model, name in (("smollm2-135m-instruct", "SMOLLM2"), ("gemma-3-270m", "GEMMA")):
        of_model = runs[(runs.model == model) & (runs.draw > 0)]
        at = {look: of_model[of_model["look"] == look] for look in ("matched", "tuned", "end")}
        found[f"{name}_MATCHED"] = means(at["matched"], NUMBERS | BACK)
        found[f"{name}_TUNED"] = means(at["tuned"], NUMBERS)
        found[f"{name}_END"] = means(at["end"], NUMBERS)
        found[f"{name}_PAIRS"] = pairs(at)
    found["TOFU"] = table(read_lines(TAUGHT), TOFU).replace(" ± ", "±", regex=True)
    for page in ("results", "tables"):
        text = Path(__file__).with_name(f"{page}.md.in").read_text(encoding="utf-8")
        for name, shown in found.items():
            rows = shown.to_markdown(disable_numparse=True) if len(shown) else "No runs yet."
            text = text.replace(f"@{name}@", re.sub(r" *\| *", "|", rows))
        (ROOT / "docs" / f"{page}.md").write_text(text, encoding="utf-8")


def looks(lines: list[dict[str, Any]]) -> pd.DataFrame:
    """A row for every look at a run: which one, what was run, its numbers; none if it had none."""
    rows = [
        {"look": look, **{k: line[k] for k in ("model", "method", "draw")}, **(line[look] or {})}
        for line in lines
        for look in ("matched", "tuned", "end")
    ]
    found = pd.DataFrame(rows)
    return found.assign(name=found.method.map(named))


def named(key: str) -> str:
    """A method as it is called in tables, with SAM's radius and side."""
    plain, _, sharp = key.partition("@")
    return methods.label(plain) + (f", {sharp.replace('/', ' nats, ')}" if sharp else "")


def means(runs: pd.DataFrame, numbers: dict[str, str]) -> pd.DataFrame:
    """The mean over draws, with its standard deviation; of how many draws, and of those how many.

    *Draws* says `4 of 5` where a run had forgotten too little at its end.
    """
    rows = {}
    for name, group in runs.groupby("name", sort=False):
        there = group[group.steps.notna()] if "steps" in group else group[:0]
        if len(there):
            cells = {head: cell(there[key], head) for key, head in numbers.items()}
            rows[name] = {"draws": f"{len(there)} of {len(group)}", **cells}
        else:
            rows[name] = {"draws": f"0 of {len(group)}"} | dict.fromkeys(numbers.values(), "–")
    return pd.DataFrame.from_dict(rows, orient="index")


def cell(values: pd.Series, head: str) -> str:
    """`88±5`: mean and standard deviation over draws; per cent if the heading says so."""
    scale, digits = (100, 0) if head.endswith("%") else (1, 0 if head in ("steps", "passes") else 2)
    mean, spread = scale * values.mean(), scale * values.std()
    return f"{mean:.{digits}f}" + (f"±{spread:.{digits}f}" if len(values) > 1 else "")


def pairs(at: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Mean differences on the same draws, with 95 % intervals: the constraint against three ways.

    Against the same method stopped when hardly a fact is said, after the steps that draw 0 says,
    and at the end of a run that nobody stopped, where the constraint's run ends, too.
    """
    rows, numbers = {}, [k for k in NUMBERS if k not in ("steps", "passes")]
    for alm in [name for name in at["end"].name.unique() if " + ALM" in name or name == "SAUL"]:
        plain = "SAUL w/o ALM" if alm == "SAUL" else alm.removesuffix(" + ALM")
        for told, more, less in (
            ("stopped when asked", "matched", "matched"),
            ("steps of draw 0", "matched", "tuned"),
            ("not stopped", "end", "end"),
        ):
            sides = [
                at[look][at[look].name == name].set_index("draw")
                for look, name in ((more, alm), (less, plain))
            ]
            found = {NUMBERS[k]: difference(*sides, k) for k in numbers if k in sides[0]}
            if any(text != "–" for text in found.values()):
                rows[f"{alm}: {told}"] = found
    return pd.DataFrame.from_dict(rows, orient="index")


def difference(more: pd.DataFrame, less: pd.DataFrame, number: str) -> str:
    """The mean over the draws that both have of more - less, and Student's interval."""
    if number not in more or number not in less:
        return "–"
    found = (more[number] - less[number]).dropna().astype(float)
    scale, digits = (100, 0) if NUMBERS[number].endswith("%") else (1, 2)
    mean = f"{scale * found.mean():+.{digits}f}"
    if len(found) < 2:
        return "–" if found.empty else mean
    half = student.ppf(0.975, len(found) - 1) * found.sem()
    return f"{mean}±{scale * half:.{digits}f}"


def short(runs: pd.DataFrame, command: pd.DataFrame) -> pd.DataFrame:
    """Eight rows of the published model, where hardly a fact is said."""
    study = runs[(runs.model == "smollm2-135m-instruct") & (runs.draw > 0)]
    control = study[(study.method == methods.CONTROL) & (study["look"] == "end")]
    chosen = study[study.method.isin(SHORT) & (study["look"] == "matched")]
    told = command.assign(name=COMMAND)
    shown = pd.concat([told, control, chosen])
    return means(
        shown, {key: NUMBERS[key] for key in SHORT_NUMBERS} | {"relearned_said": "back, %"}
    )


def commanded(command: pd.DataFrame) -> pd.DataFrame:
    """Every run of the command."""
    heads = NUMBERS | BACK
    keys = [key for key in heads if key in command and key.endswith("_said")]
    shares = (100 * command.set_index("draw")[keys]).round()
    shares = shares.map(lambda x: "–" if pd.isna(x) else f"{x:.0f}").rename(columns=heads)
    costs = command.set_index("draw")[["code", "steps", "minutes", "GB"]]
    return costs.join(shares).astype(str)


if __name__ == "__main__":
    main()
