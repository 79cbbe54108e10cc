"""Tables of recorded runs: `python -m benchmarks.tasks.facts.evidence` writes docs/tables.md."""

import re
from pathlib import Path

import pandas as pd
from scipy.stats import t as student

from benchmarks import methods
from benchmarks.report.results import read_lines
from benchmarks.report.tables import Column, table

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "benchmarks" / "results" / "facts"
COMMAND = "`torch-alm unlearn`"
TAUGHT = RESULTS.with_name("taught") / "results.jsonl"
NUMBERS = {
    "forget_said": "forget, %",
    "reworded_said": "reworded, %",
    "retain_said": "retain, %",
    "neighbours_said": "unseen, %",
    "forget_loss": "gold loss, nats",
    "perplexity": "prose",
    "relearned_said": "relearned, %",
    "pushed": "pushed, %",
}
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


SHORT = f"""{COMMAND}
Retain side alone
Dual AdamW
Dual AdamW, steps 10
Dual AdamW + ALM
NPO, steps 10
NPO + ALM
SAUL""".splitlines()
"""Rows of the short page."""
FEWEST = 5
"""Draws of which a mean or a difference is shown."""


def main() -> None:
    """Write both pages of evidence from their templates beside this file."""
    runs, command = (
        pd.read_json(RESULTS / f"{name}.jsonl", lines=True, precise_float=True)
        for name in ("runs", "command")
    )
    runs = pd.concat([named(runs), command.assign(name=COMMAND)])
    study = runs[(runs.draw > 0) & runs.kind.isna()]
    every = means(study)
    short = every.loc[[name for name in SHORT if name in every.index]].iloc[:, :5]
    found = {"SHORT": short, "MEANS": every[every.draws >= FEWEST], "PAIRS": pairs(study)}
    found["SEARCH"] = search(runs[runs.draw == 0])
    settings = runs.overrides.map(lambda o: {*o} - {"steps"} if isinstance(o, dict) else set())
    found["OTHERS"] = means(runs[(runs.draw == 0) & settings.astype(bool)])
    asked = [*[*NUMBERS][:4], "relearned_said"]
    shares = (100 * command.set_index("draw")[asked]).round().astype(int)
    costs = command.set_index("draw")[["code", "steps", "minutes", "GB"]]
    found["COMMAND"] = costs.join(shares.rename(columns=NUMBERS)).astype(str)
    found |= {name: now(name.lower()) for name in ("NATS", "MATCHED")}
    found["TOFU"] = table(read_lines(TAUGHT), TOFU).replace(" ± ", "±", regex=True)
    for page in ("results", "tables"):
        text = Path(__file__).with_name(f"{page}.md.in").read_text(encoding="utf-8")
        for name, shown in found.items():
            rows = shown.to_markdown(disable_numparse=True)
            text = text.replace(f"@{name}@", re.sub(r" *\| *", "|", rows))
        (ROOT / "docs" / f"{page}.md").write_text(text, encoding="utf-8")


def now(name: str) -> pd.DataFrame:
    """Lines of the present code, shares in percent, with the columns of their file."""
    lines = pd.read_json(RESULTS / f"{name}.jsonl", lines=True).set_index("draw")
    for column in [column for column in lines if column.endswith("_said")]:
        lines[column] = [f"{100 * x:.0f}" if x == x else "" for x in lines[column]]
    lines = lines.rename(columns={"neighbours_said": "unseen_said"})
    return lines.rename(columns=lambda c: c.replace("_said", ", %").replace("_", " "))


def named(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with a `name`: the method, and what differs from the study."""
    others = runs.overrides.map(lambda o: "".join(f", {name} {o[name]}" for name in o))
    others = others.str.replace("measure row_nll", "every row")
    return runs.assign(name=runs.method.map(methods.label) + others)


def means(runs: pd.DataFrame) -> pd.DataFrame:
    """The mean over draws of every number, and how many draws there are."""
    grouped = runs.groupby("name", sort=False)
    found = grouped[list(NUMBERS)].mean().rename(columns=NUMBERS)
    for name in found:
        scale, digits = (100, 0) if name.endswith("%") else (1, 2)
        found[name] = (found[name] * scale).map(f"{{:.{digits}f}}".format).replace("nan", "–")
    found.insert(0, "draws", grouped.draw.count())
    return found


def search(runs: pd.DataFrame) -> pd.DataFrame:
    """Percent of unseen facts and of rewordings that are said after so many steps, by method."""
    plain = runs[runs.overrides.map(lambda o: {*o} <= {"steps"})]
    shares = 100 * plain[["neighbours_said", "reworded_said"]]
    found = plain.assign(
        steps=plain.overrides.map(lambda o: o.get("steps", 20)),
        method=plain.method.map(methods.label),
        said=[f"{unseen:.0f}/{reworded:.0f}" for unseen, reworded in shares.to_numpy()],
    )
    return found.pivot(index="method", columns="steps", values="said").dropna()


def pairs(runs: pd.DataFrame) -> pd.DataFrame:
    """The mean differences, by draw, between names that belong together, with 95 % intervals."""
    names = runs.name.unique()
    wanted = {f"{name}: + ALM": (f"{name} + ALM", name) for name in names}
    tuned = {name: name.partition(",")[0] + " + ALM" for name in names if ", steps" in name}
    for name, alm in tuned.items():
        wanted[name.replace(",", ": + ALM against", 1)] = (alm, name)
    wanted |= {f"{name}: every row": (f"{name}, every row", name) for name in names}
    wanted["SAM on both sides"] = ("SAUL", "Dual AdamW + ALM")
    wanted["SAM, radius 0.1"] = ("SAUL, rho_forget 0.1, rho_retain 0.1", "Dual AdamW + ALM")
    wanted["SAM on the forget side"] = ("SAUL", "SAUL w/o SAM")
    wanted["The command against 40 steps"] = (COMMAND, "Dual AdamW, retain kl, steps 40")
    found = {
        label: {name: difference(runs, key, *pair) for key, name in list(NUMBERS.items())[:7]}
        for label, pair in wanted.items()
        if set(pair) <= set(names) and len(shared(runs, *pair)) >= FEWEST
    }
    return pd.DataFrame(found).T


def shared(runs: pd.DataFrame, more: str, less: str) -> set[int]:
    """The draws that both have."""
    return set(runs.draw[runs.name == more]) & set(runs.draw[runs.name == less])


def difference(runs: pd.DataFrame, number: str, more: str, less: str) -> str:
    """The mean over the draws that both have of more - less, and Student's interval."""
    wide = runs.pivot(index="draw", columns="name", values=number)
    found = (wide[more] - wide[less]).dropna()
    scale, digits = (100, 0) if NUMBERS[number].endswith("%") else (1, 2)
    mean = f"{scale * found.mean():+.{digits}f}"
    if len(found) < 2:
        return "–" if found.empty else mean
    half = student.ppf(0.975, len(found) - 1) * found.sem()
    return f"{mean}±{scale * half:.{digits}f}"


if __name__ == "__main__":
    main()
