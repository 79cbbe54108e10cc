r"""The pages of evidence, from recorded runs.

python -m benchmarks.tasks.facts.evidence                      write them
python -m benchmarks.tasks.facts.evidence --check              are they those of the runs?
"""

import argparse
import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from scipy.stats import t as student

from benchmarks import methods
from benchmarks.report.results import read_lines, write_text
from benchmarks.report.tables import Column, cell, table
from benchmarks.tasks.facts.weights import NAME as PUBLISHED

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
STUDY = yaml.safe_load((HERE / "study.yaml").read_text(encoding="utf-8"))
RESULTS = ROOT / "benchmarks/results/facts"
COMMAND, LOOP = "[Command](command.md)", "[Loop](loop.md)"
TAUGHT = {"TOFU": "unknown", "TOFU_10": "10"}  # alpha of the lines of the taught model
TOLD, COSTS = {"stopped": "matched", "unstopped": "end"}, ["steps", "passes"]
SAID = ["forget_said", "reworded_said", "retain_said", "kin_said", "neighbours_said"]
NUMBERS = [*SAID, "forget_loss", "perplexity"]
WEIGHTS = ["begun_said", "bits8_said", "bits4_said", "noise0.05_said"]
BACK = [*WEIGHTS, "relearned10_said", "others_loss", "relearned10_loss"]  # what brings it back
ATTACKS = ("bits8", "bits4", "noise0.1", "noise0.2", "noise0.4", "relearned10", "relearned30")
MODELS = {PUBLISHED: "SmolLM2", "gemma-3-270m": "Gemma", "embedded": "Small models"}
SHARP = ["steps", *SAID[1:3], "neighbours_said", "begun_said", "forget_loss"]
SHARP += [*(f"{attack}_said" for attack in ATTACKS), "noise0.4_loss", "relearned30_loss"]
SHARP_SHORT = ["steps", "reworded_said", "neighbours_said", "noise0.4_said", "relearned30_said"]
CONSTRAINT, MOST_SAID = "constraint", STUDY["most_said"] / STUDY["forget"]
KNOWN = ("model", "part", "method", "draw")  # what a run is called
SMALL = {  # of the models that benchmarks/muse.py and wmdp.py train themselves
    "muse": {
        "verbmem_f": "VerbMem forget", "knowmem_f": "KnowMem forget", "privleak": "PrivLeak",
        "knowmem_r": "KnowMem retain", "perplexity_unseen": "unseen perplexity",
    },
    "wmdp": {
        "doom_accuracy": "Doom", "shade_accuracy": "Shadow", "retain_accuracy": "kept",
        "neighbour_accuracy": "neighbours", "utility_accuracy": "all kept", "gate_open": "pushed",
    },
}  # fmt: skip
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


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages, or say which are not those of the runs; 0 if all are."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--check", action="store_true", help="write nothing")
    given = made.parse_args(argv)
    changed = {p: text for p, text in fill_pages().items() if text != p.read_text(encoding="utf-8")}
    for path, text in changed.items():
        if given.check:
            print(f"{path.relative_to(ROOT)} is not what its template and the runs say.")
        else:
            write_text(path, text)
    return int(given.check and bool(changed))


def fill_pages() -> dict[Path, str]:
    """Fill each page's template with the tables of the runs."""
    found = {name: format_table(frame) for name, frame in make_tables().items()}
    names = {page: HERE / f"{page}.md.in" for page in ("results", "tables")}
    texts = {page: path.read_text(encoding="utf-8") for page, path in names.items()}
    filled = {
        ROOT / f"docs/{page}.md": re.sub("@([A-Z0-9_]+)@", lambda m: found[m[1]], text)
        for page, text in texts.items()
    }
    sam = ROOT / "docs/sam.md"  # its table alone is written
    text = sam.read_text(encoding="utf-8")
    made = re.sub(r"(?s)(<!--SAM-->\n\n).*?\n\n", rf"\1{found['SAM_SHORT']}\n\n", text)
    return filled | {sam: made}


def format_table(frame: pd.DataFrame) -> str:
    """A table of Markdown without spaces that no reader sees."""
    rows = frame.to_markdown(disable_numparse=True) if len(frame) else "No runs yet."
    return re.sub(r"(?<=:-)-+| *(\|) *", r"\1", rows)


def make_tables() -> dict[str, pd.DataFrame]:
    """Every table by its name in the templates."""
    lines = read_lines(RESULTS / "runs.jsonl")
    runs = list_looks([line for line in lines if line["draw"] > 0])
    files = {COMMAND: RESULTS / "command.jsonl", LOOP: RESULTS / "loop.jsonl"}
    told = [
        {"name": describe_run(name, line), **line}
        for name in files
        for line in read_lines(files[name])
    ]
    others, found = pd.DataFrame(told), {}
    for model, label in MODELS.items():
        name, of_model = (
            label.upper().split()[0],
            runs[(runs.model == model) & (runs.part != "sam")],
        )
        at = {look: of_model[of_model["look"] == look] for look in TOLD.values()}
        found[f"{name}_MATCHED"] = means(at["matched"], COSTS + NUMBERS)
        found[f"{name}_BACK"] = means(at["matched"], BACK)
        found[f"{name}_END"] = means(at["end"], NUMBERS)
        found[f"{name}_PAIRS"] = pairs(at)
        if model == PUBLISHED:
            short = at["matched"][at["matched"].method.isin(SHORT)]
            control = at["end"][at["end"].method == methods.CONTROL]
            short = pd.concat([others[others.model == PUBLISHED], control, short])
            found["SHORT"] = means(short, ["steps", *SAID, "forget_loss", "relearned10_said"])
    found["COMMAND"] = list_runs(others)
    found["LISTS"] = compare_lists(read_lines(RESULTS / "lists.jsonl"))
    found["BEST"] = compare_weights(runs)
    found["SAM"] = compare_sharpness(runs, SHARP).T
    found["SAM_SHORT"] = compare_sharpness(runs, SHARP_SHORT)
    lines = read_lines(RESULTS.with_name("taught") / "results.jsonl")
    for name, point in TAUGHT.items():
        of_point = [line for line in lines if line["point"] == point]
        found[name] = table(of_point, TOFU).replace(" ± ", "±", regex=True)
    for name, headings in SMALL.items():
        columns = [Column(*pair, 1 if name == "muse" else 2) for pair in headings.items()]
        lines = read_lines(RESULTS.with_name("small") / f"{name}.jsonl")
        found[name.upper()] = table(lines, columns).replace(" ± ", "±", regex=True)
    return found


def heading(key: str) -> str:
    """The head of a column; shares are in percent."""
    return key.replace("neighbours", "unseen").replace("_said", ", %").replace("_loss", ", nats")


def list_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for every run."""
    heads = ["name", "model", "draw", "code", "steps", "minutes", "GB", *SAID, "relearned10_said"]
    found = runs[[key for key in heads if key in runs]].rename(columns=heading).set_index("name")
    shares = [name for name in found if name.endswith("%")]
    found[shares] = (100 * found[shares]).round()
    return found.map(lambda x: x if isinstance(x, str) else f"{x:.3g}".replace("nan", ""))


def describe_run(name: str, line: dict[str, Any]) -> str:
    """What ran: which version, if the line says it, and whether adapters were trained."""
    version = line.get("version", "").removesuffix(".0")
    return f"{name} {version}".strip() + ", adapters" * line.get("lora", False)


def compare_lists(lines: list[dict[str, Any]]) -> pd.DataFrame:
    """The command on facts of other lists: means over draws, and the least that was kept."""
    if not lines:
        return pd.DataFrame()
    runs = pd.DataFrame(lines)
    adapters = runs.lora.map({True: ", adapters", False: ""})
    name = runs.model.map(MODELS).fillna(runs.model) + adapters
    runs = runs.assign(name=runs.list + ", " + runs.answers + ": " + name)
    kept = means(runs, ["steps", *SAID, "forget_loss"])
    return kept.assign(
        worst=(100 * runs.groupby("name").neighbours_said.min()).map("{:.0f}".format)
    )


def list_looks(lines: list[dict[str, Any]]) -> pd.DataFrame:
    """A row for every look at a run: which one, what was run, its numbers; none if it had none."""
    rows = [
        {"look": x, **{k: line.get(k) for k in KNOWN}, **(line.get(x) or {})}
        for line in lines
        for x in TOLD.values()
    ]
    found = pd.DataFrame(rows)
    return found.assign(name=found.method.map(method_name))


def method_name(key: str) -> str:
    """A method as it is called in tables, with its weight, or SAM's radius and side."""
    plain, _, more = key.partition("@")
    more = more.replace("w", "weight ").replace("/", " nats, ")
    return methods.label(plain) + (f", {more}" if more else "")


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
    """Mean differences on the same draws, with 95 % intervals: the constraint less none.

    Where hardly a fact is said, and at the end of a run that nobody stopped.
    """
    rows = {}
    for alm in [name for name in at["end"].name.unique() if " + ALM" in name or name == "SAUL"]:
        plain = "SAUL w/o ALM" if alm == "SAUL" else alm.removesuffix(" + ALM")
        others = [n for n in at["end"].name.unique() if n == plain or n.startswith(f"{plain}, w")]
        for (told, look), other in itertools.product(TOLD.items(), others):
            sides = [at[look][at[look].name == n].set_index("draw") for n in (alm, other)]
            cells = {heading(key): difference(*sides, key) for key in NUMBERS}
            if set(cells.values()) != {"–"}:
                rows[f"{other}, {told}"] = cells
    return pd.DataFrame.from_dict(rows, orient="index")


def difference(more: pd.DataFrame, less: pd.DataFrame, number: str) -> str:
    """The mean over the draws that both have of more - less, and Student's interval."""
    if number not in more or number not in less:
        return "–"
    return interval(
        (100 if number.endswith("_said") else 1) * (more[number] - less[number]), number
    )


def interval(values: pd.Series, number: str = "_said", cells: int = 1) -> str:
    """The mean and Student's 95 % interval, of all cells together by Bonferroni; bold without 0."""
    values, digits = values.dropna(), 2 if number.endswith(("_loss", "perplexity")) else 0
    mean = f"{values.mean():+.{digits}f}"
    if len(values) < 2:
        return mean if len(values) else "–"
    half = student.ppf(1 - 0.025 / cells, len(values) - 1) * values.sem()
    bold = "**" if cells > 1 and abs(values.mean()) > half else ""
    return f"{bold}{mean}±{half:.{digits}f}{bold}"


def collect_unseen(runs: pd.DataFrame, model: str, plain: str, look: str) -> pd.DataFrame:
    """Unseen facts kept, in percent: a row a draw, a column a weight, and one for the constraint.

    Only draws with all weights that were tried. A weight has no number where it has not forgotten
    enough: at a look that no run of a draw came to, and at the end if the draws say too much.
    """
    columns = dict(zip(list_weights(plain), STUDY["weights"], strict=True))
    columns[plain + methods.ALM] = CONSTRAINT
    of = runs[(runs.model == model) & (runs["look"] == look) & (runs.part != "sam")]
    of = of[of.method.isin(columns)].assign(there=1.0).set_index(["draw", "method"])
    columns = {key: name for key, name in columns.items() if key in of.index.unique("method")}
    keys = ("there", "forget_said", "neighbours_said")
    there, forget, unseen = (of[key].unstack().reindex(columns=columns) for key in keys)
    found = 100 * unseen[there.notna().all(axis=1)]
    if look == "end":
        found.loc[:, forget.loc[found.index].mean() > MOST_SAID] = math.nan
    return found.rename(columns=columns)


def list_weights(key: str) -> list[str]:
    """A method with each of the study's forget weights; 1 goes without saying."""
    return [key if weight == 1 else f"{key}@w{weight}" for weight in STUDY["weights"]]


def find_best(found: pd.DataFrame) -> Any:
    """The weight that keeps most in the mean, of those that forget enough in nine draws of ten."""
    weights = found.drop(columns=CONSTRAINT, errors="ignore")
    means = weights.mean()[weights.notna().mean() >= 0.9]
    return means.idxmax() if len(means) > 1 else None


def compare_weights(runs: pd.DataFrame) -> pd.DataFrame:
    """The best weight of every model and method, and what the constraint keeps beside it."""
    rows, plain = {}, STUDY["embedded"]["weighed"][:-1]
    for told, look in TOLD.items():
        names = {f"{MODELS[m]}, {methods.label(key)}": (m, key) for m in MODELS for key in plain}
        found = {name: collect_unseen(runs, *line, look) for name, line in names.items()}
        chosen = {name: best for name, x in found.items() if (best := find_best(x)) is not None}
        for name, own in chosen.items():
            kept, held = found[name], found[name][CONSTRAINT]
            others = [w for d in kept.index if (w := find_best(kept.drop(index=d))) is not None]
            by_other = [kept.at[d, w] for d, w in zip(kept.index, others, strict=False)]
            costs = {x: kept[w] - kept[own] for x, w in chosen.items() if w != own}
            worst = min(costs, key=lambda x: costs[x].mean(), default=None)
            rows[f"{name}, {told}"] = {
                "draws": str(len(kept)),
                "best weight": str(own),
                "unseen, %": f"{kept[own].mean():.0f}",
                "constraint, %": f"{held.mean():.0f}",
                "constraint less best": interval(held - kept[own]),
                "less best by other draws": interval(held - by_other) if by_other else "–",
                "worst best of another": f"{chosen[worst]}: {interval(costs[worst])}"
                if worst
                else "–",
            }
    return pd.DataFrame.from_dict(rows, orient="index")


def compare_sharpness(runs: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """SAM less none, on the same draws where hardly a fact is said; a row a radius and a side."""
    of = runs[(runs.part == "sam") & (runs["look"] == "matched")].set_index("draw")
    plain, *sharp = of.method.unique() if len(of) else [""]
    cells = len(sharp) * len(SHARP)
    rows = {}
    for key in sharp:
        more = of.loc[of.method == key, keys] - of.loc[of.method == plain, keys]
        more[[n for n in keys if n.endswith("_said")]] *= 100
        rows[key.partition("@")[2].replace("/", ", ")] = {
            heading(n): interval(more[n], n, cells) for n in keys
        }
    return pd.DataFrame.from_dict(rows, orient="index")


if __name__ == "__main__":
    raise SystemExit(main())
