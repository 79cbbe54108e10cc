"""`report.html` from what stands in `report.json`, and the table on the terminal."""

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import cache
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, NamedTuple

import jinja2

from torch_alm.cli import charts, dots, returning
from torch_alm.cli.charts import Chart
from torch_alm.cli.measuring import ROWS
from torch_alm.cli.output import REPORTS, Output
from torch_alm.cli.places import described
from torch_alm.cli.redaction import redacted
from torch_alm.cli.tables import ATTACKED, Content, attack_table, cell, table
from torch_alm.unlearning.files import write_json, write_text


class Result(NamedTuple):
    """The end of a verb: its exit code, what its report says (if there is one), and a last line.

    A dry run has a plan in place of a report.
    """

    code: int
    content: Content | None
    told: str
    plan: Content | None = None


ANSWERS = 20  # shown per set; report.json has them all
PACKAGES = ("torch-alm", "torch", "transformers", "peft")
WORST = ("where", "rouge", "verbatim", "loss")
TONES = {
    "met": "met",
    "met at a cost": "costly",
    "not met": "missed",
    "nothing comes back": "met",
    "not compared": "costly",
    "comes back": "missed",
    "not forgotten": "missed",
    "not attacked": "costly",
}


def publish(
    output: Output, content: Content, begun: datetime, device: str, *, redact: bool
) -> Content:
    """Write both reports of a run that began then, on that device; return what they say."""
    content = {**content, "run": run_of(begun, device)}
    content = redacted(content) if redact else content
    write_json(output.folder / "report.json", content, output.announce)
    write_text(output.folder / "report.html", html(content), output.announce)
    output.note(*REPORTS)
    return content


def run_of(begun: datetime, device: str) -> dict[str, Any]:
    """The date on which a run began, its duration until now, and its device."""
    seconds = (datetime.now(timezone.utc) - begun).total_seconds()
    return {
        "date": begun.isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "device": described(device),
    }


@cache  # each is a file of metadata that is parsed as mail is
def versions() -> Mapping[str, str]:
    """The versions of the software that computed the numbers."""
    found = {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
    return MappingProxyType(found)


def html(content: Content) -> str:
    """The whole page: no script, and nothing fetched from anywhere."""
    run, attacks = content["run"], content["attacks"]
    settings = {
        "date": run["date"],
        "duration": str(timedelta(seconds=round(run["seconds"]))),
        **content["settings"],
        "device": run["device"],
        "versions": ", ".join(f"{k} {v}" for k, v in content["versions"].items()),
    }
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=content["title"],
            subtitle=content["subtitle"],
            verdict=verdict(content),
            worst=worst(content),
            notes=content["notes"],
            table=table(content["models"]),
            attacks=attacks and attack_table(attacks, [*ATTACKED][: 5 - len(attacks)]),
            figure=attacks and dots.figure(attacks),
            examples=attacks and returning.examples(attacks),
            charts=lines(content),
            answers=answers(content["models"]),
            settings=[(k.replace("_", " "), v) for k, v in settings.items() if v is not None],
            frame=charts,
        )
    )


@cache
def _environment() -> jinja2.Environment:
    loader = jinja2.PackageLoader("torch_alm.cli", "")
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)


def verdict(content: Content) -> dict[str, str] | None:
    """The outcome in words, and its colour; None where there was no goal."""
    found = content["verdict"]
    if found is None:
        return None
    head, _, text = found["text"].partition(": ")
    return {"head": head, "text": text, "cost": found["cost"], "tone": TONES[found["outcome"]]}


def worst(content: Content) -> list[dict[str, Any]]:
    """The rows of which most is still said: where they stand, how much of them, and the text."""
    found = content["verdict"]["worst"] if content["verdict"] else []
    return [{**row, "share": cell(row["rouge"], ROWS["rouge"])} for row in found]


def summary(content: Content) -> dict[str, Any]:
    """A run as a script wants to know it: in numbers, and without anybody's text."""
    found: Content = content["verdict"] or {"outcome": "done", "code": 0, "worst": []}
    rows = [{key: row[key] for key in WORST} for row in found["worst"]]
    numbers = {model["name"]: model["numbers"] for model in content["models"]}
    attacks = {each["name"]: list(map(_in_numbers, each["rows"])) for each in content["attacks"]}
    told = {"goal": content["goal"], "numbers": numbers, "attacks": attacks}
    return {**found, **told, "worst": rows, "notes": content["notes"]}


def _in_numbers(row: Content) -> dict[str, Any]:
    return {key: row[key] for key in ("name", "attacker", "before", "after")}


def lines(content: Content) -> list[Chart]:
    """A chart for each number that was measured in every step."""
    trace = content["trace"]
    if not trace:
        return []
    goal = content["goal"]
    is_open = [row["weight"] > 0 for row in trace]
    measured = "Forget loss" if goal["kind"] == "loss" else "Certified rate"
    shown = (
        (measured, "forget", goal["alpha"]),
        ("Retain loss", "retain_loss", None),
        ("multiplier λ", "lambda", None),
    )
    return [Chart(t, [row[key] for row in trace], level, is_open) for t, key, level in shown]


def answers(models: Sequence[Content]) -> list[dict[str, Any]]:
    """The first answers of each set, what every model says below one another."""
    return [
        {
            "name": f"Answers: {name}",
            "rows": _beside([(m["name"], m["answers"][name]) for m in models])[:ANSWERS],
            "more": max(0, len(models[-1]["answers"][name]) - ANSWERS),
        }
        for name in ("forget", "retain")
        if models and models[-1]["answers"].get(name)
    ]


def _beside(models: Sequence[tuple[str, Sequence[Content]]]) -> list[dict[str, Any]]:
    """The last model's rows with what each model says of them.

    A long text is several rows, and another tokenizer cuts it into more or fewer.
    """
    placed = [(name, _placed(rows)) for name, rows in models]
    return [
        {**row, "said": [(name, rows[place]["answer"]) for name, rows in placed if place in rows]}
        for place, row in placed[-1][1].items()
    ]


def _placed(rows: Iterable[Content]) -> dict[tuple[str, int], Content]:
    """Rows by the line they come from, and which of its rows they are."""
    seen: Counter[str] = Counter()
    found: dict[tuple[str, int], Content] = {}
    for row in rows:
        seen[row["where"]] += 1
        found[row["where"], seen[row["where"]]] = row
    return found


def terminal(content: Content) -> str:
    """The beginning of the page, in at most 80 columns."""
    found = table(content["models"])
    out: list[str] = []
    if found is not None:
        out.append(_row("", found["columns"]))
        for part in found["parts"]:
            out.append(part["name"])
            out += [_row("  " + row["name"], row["cells"]) for row in part["rows"]]
    if content["attacks"]:
        out += ["", *_came_back(content["attacks"])]
    if (told := verdict(content)) is not None:
        first = [f"{told['head']}: {told['text']}", told["cost"]]
        lines = (f"{row['share']} {row['where'].rpartition(', ')[2]}" for row in worst(content))
        most = ", ".join(lines)
        out += [*filter(None, first), *([f"Said most: {most}."] if most else [])]
    return "\n".join(out)


def _came_back(attacks: Sequence[Content]) -> Iterable[str]:
    """A table of at most four columns."""
    measures = [*ATTACKED] if len(attacks) == 1 else ["rouge", "loss"]
    found = attack_table(attacks, measures)
    names = (name.replace("word for word", "exact") for name in found["columns"])
    short = [name.replace("compared", "other") for name in names]
    yield _narrow("", short)
    for row in found["rows"]:
        yield _narrow(row["name"], row["cells"])


def _row(name: str, cells: Iterable[str]) -> str:
    return f"{name:<36}" + "".join(f"{each:>14}" for each in cells)


def _narrow(name: str, cells: Iterable[str]) -> str:
    short = (each.replace(" %", "%").replace(" → ", "→") for each in cells)
    return f"{name:<24}" + "".join(f"{each:>14}" for each in short)
