"""Render `report.json` as `report.html` and as the table on the terminal."""

import io
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import jinja2
import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

from torch_alm.unlearning.folders import REPORTS, write_json, write_text

Content: TypeAlias = Mapping[str, Any]

PACKAGES = ("torch-alm", "torch", "transformers", "peft")
SETS = {"forget": "Forget", "retain": "Retain", "probe": "Probe", "holdout": "Never seen"}
ROWS = {  # name, digits, and whether it is a share
    "telling_loss": ("telling loss, nats per token", 2, False),
    "loss": ("loss of all words, nats per token", 2, False),
    "said": ("said, but for a tenth of the words", 0, True),
    "exact_match": ("answered token for token", 0, True),
    "rouge": ("words of the answer said (ROUGE-L)", 0, True),
    "certificate": ("certified not token for token", 0, True),
}
ATTACKED = {"rouge": "words", "exact_match": "verbatim", "loss": "loss"}


def content_of(title: str, subtitle: str, settings: Content, **more: Any) -> dict[str, Any]:
    """Return the content of `report.json`; `more` are the results of a verb."""
    told = {"title": title, "subtitle": subtitle, "settings": settings, "goal": None}
    told |= {"verdict": None, "models": [], "trace": [], "attacks": [], "notes": []}
    return {**told, "files": [*REPORTS], **more}


def publish(folder: Path, content: Content, begun: datetime, device: str) -> Content:
    """Write both reports of a run, given its begin and device; return their content."""
    seconds = (datetime.now(timezone.utc) - begun).total_seconds()
    run = {"date": begun.isoformat(timespec="seconds"), "device": device}
    versions = {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
    content = {**content, "run": {**run, "seconds": round(seconds, 1)}, "versions": versions}
    write_json(folder / "report.json", content)
    write_text(folder / "report.html", to_html(content))
    return content


def to_html(content: Content) -> str:
    """Return the page: no script, and nothing loaded from elsewhere."""
    run, models = content["run"], content["models"]
    told = ", ".join(f"{k} {v}" for k, v in content["versions"].items())
    duration = str(timedelta(seconds=round(run["seconds"])))
    settings = {"date": run["date"], "duration": duration, "device": run["device"]}
    settings |= {**content["settings"], "versions": told}
    answers = {kind: _pair_answers(models, kind) for kind in ("forget", "retain", "probe")}
    return _load_page().render(
        content,
        answers=answers,
        returned=_render_returned(content["attacks"]),
        table=table_of(content),
        figure=plot_losses(content["trace"], content["goal"]),
        settings=[(k.replace("_", " "), v) for k, v in settings.items() if v is not None],
    )


def to_excerpt(content: Content) -> str:
    """Return verdict and table, for use within another page."""
    page = _load_page()
    shown = page.new_context({**content, "table": table_of(content)})
    return "".join(part for name in ("verdict", "table") for part in page.blocks[name](shown))


def _load_page() -> jinja2.Template:
    loader = jinja2.PackageLoader("torch_alm.unlearning", "")
    page = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    return page.get_template("report.html.j2")


def _pair_answers(models: Sequence[Content], kind: str) -> list[dict[str, Any]]:
    """Return the last model's rows of a set with each model's answer, most changed first."""
    sets = [(model["name"], model["answers"].get(kind, ())) for model in models]
    placed = [
        (name, {(row["where"], row["reference"]): row for row in rows}) for name, rows in sets
    ]
    found = [
        {
            **row,
            "was": placed[0][1].get(place, row)["rouge"],
            "said": [(name, rows[place]["answer"]) for name, rows in placed if place in rows],
        }
        for place, row in (placed[-1][1].items() if placed else ())
    ]
    most_said = kind == "forget"  # come first there
    return sorted(found, key=lambda r: -r["rouge"] if most_said else r["rouge"] - r["was"])


def _render_returned(attacks: Sequence[Content]) -> list[dict[str, Any]]:
    """Return the five rows of which any attack brought back most."""
    every: list[dict[str, Any]] = [
        {**row, "said": [("before", row["earlier"]), (attack["name"], row["answer"])]}
        for each in attacks[:1] for attack in each["rows"] for row in attack["answers"]
    ]  # fmt: skip
    every.sort(key=lambda row: row["rouge"])
    most = {row["where"]: row for row in every}  # the last of each place
    return sorted(most.values(), key=lambda row: -row["rouge"])[:5]


def table_of(content: Content) -> dict[str, Any]:
    """Return a table: a column per model with its numbers, or a row per attack."""
    models = content["models"]
    if content["attacks"]:
        return _attack_table(content["attacks"])
    last = models[-1]["numbers"]
    parts = [
        {"name": f"{title} ({last[name]['rows']:.0f} rows)",
         "rows": [{"name": ROWS[key][0], "cells": [format_cell(m["numbers"][name][key], key)
                                                   for m in models]} for key in ROWS]}
        for name, title in SETS.items() if name in last
    ]  # fmt: skip
    columns = [model["name"] for model in models]
    return {"columns": columns, "parts": parts}


def _attack_table(attacks: Sequence[Content]) -> dict[str, Any]:
    measures = [*ATTACKED] if len(attacks) == 1 else ["rouge", "loss"]
    names = [f", {each['name']}" if len(attacks) > 1 else "" for each in attacks]
    found = [{row["name"]: row for row in each["rows"]} for each in attacks]
    rows = [
        {"name": f"{name} ({row['before']['rows']:.0f} rows)",
         "cells": [_format_change(f.get(name), key) for key in measures for f in found]}
        for name, row in found[0].items()
    ]  # fmt: skip
    columns = [f"{ATTACKED[key]}{name}" for key in measures for name in names]
    return {"columns": columns, "parts": [{"name": "", "rows": rows}]}


def _format_change(row: Content | None, key: str) -> str:
    sides = () if row is None else (row["before"], row["after"])
    return " → ".join(format_cell(side[key], key) for side in sides) or "–"


def format_cell(value: float, key: str) -> str:
    """Format a number for a table."""
    _, digits, is_share = ROWS[key]
    if not math.isfinite(value):
        return "–"
    return f"{100 * value:.{digits}f} %" if is_share else f"{value:.{digits}f}"


def plot_losses(trace: Sequence[Content], goal: Content | None) -> Markup | None:
    """Plot the forget and the retain loss of every step as an SVG."""
    if not trace or goal is None:
        return None
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "torch-alm"}):
        drawn = Figure(figsize=(8, 2.6), layout="constrained")
        (forget, retain), steps = drawn.subplots(1, 2), range(1, len(trace) + 1)
        forget.plot(steps, [row["forget"] for row in trace])
        forget.axhline(goal["alpha"], linestyle="--", color="tab:red")
        forget.set(title="forget rows", xlabel="step", ylabel="nats per token")
        retain.plot(steps, [row["retain_loss"] for row in trace])
        retain.set(title="retain rows", xlabel="step", ylabel="nats per token")
        file = io.StringIO()
        drawn.savefig(file, format="svg", metadata={"Date": None})
    return Markup(file.getvalue()[file.getvalue().index("<svg") :])  # our own drawing


def summary(content: Content) -> dict[str, Any]:
    """Return the numbers of a run for a script, without any text of the rows."""
    found: Content = content["verdict"] or {"outcome": "done", "code": 0}
    attacks = {
        each["name"]: [{k: row[k] for k in ("name", "before", "after")} for row in each["rows"]]
        for each in content["attacks"]
    }
    numbers = {model["name"]: model["numbers"] for model in content["models"]}
    return {**found, "numbers": numbers, "attacks": attacks}


def to_text(content: Content) -> str:
    """Return the beginning of the page as text of at most 80 columns."""
    table = table_of(content)
    heads = [column.partition(", ") for column in table["columns"]]
    out = [_format_row("", [head[i] for head in heads]) for i in (0, 2) if any(h[i] for h in heads)]
    for part in table["parts"]:
        out += [part["name"]] if part["name"] else []
        out += [_format_row(f"  {row['name']}", row["cells"]) for row in part["rows"]]
    if (verdict := content["verdict"]) is not None:
        out += [verdict["text"], *([verdict["cost"]] if verdict["cost"] else [])]
    return "\n".join(out)


def _format_row(name: str, cells: Iterable[str]) -> str:
    short = [each.replace(" %", "%").replace(" → ", "→") for each in cells]
    width = min(14, 42 // max(1, len(short))) - 1
    return f"{name[:38]:<38}" + "".join(f" {each:>{width}}" for each in short)
