"""Compare methods at the same level of forgetting: search each one's settings, then run afresh."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from statistics import harmonic_mean
from typing import Any

from tqdm import tqdm

from benchmarks.engine import ranks
from benchmarks.engine.grids import beyond, halfway, trials
from benchmarks.engine.runner import Plan, hidden, unlearn
from benchmarks.methods import Settings
from benchmarks.report.results import Row, append_line, read_lines

SEARCH_SEED = 1_000_000
"""Added to the first seed: no reported run has seen the batches a setting was chosen on."""


def matched(plan: Plan) -> Plan:
    """The plan with each method's settings replaced by the best ones that meet the level.

    Every method may try equally many settings (fewer where its grid is smaller). Trials are kept in
    `trials.jsonl` and never repeated.
    """
    chosen, verdicts = {}, {}
    keys = plan.options.methods
    for key in tqdm(keys, desc="searches", unit="method", disable=hidden()):
        rows = search(plan, key)
        best = choose(rows, plan)
        chosen[key] = Settings(**best["settings"])
        verdicts[key] = verdict(rows, best, plan.settings[key], plan)
        if ranks.is_first():
            tqdm.write(f"{key}: {verdicts[key]}")
    if ranks.is_first():
        plan.folder.remember({"matched": verdicts})
    return dataclasses.replace(plan, settings={**plan.settings, **chosen})


def search(plan: Plan, key: str) -> list[Row]:
    """Try a method's settings, as many as the budget has, then between them; earlier ones count."""
    known = ranks.from_first(lambda: read_lines(plan.folder.trials))
    rows = [row for row in known if row["method"] == key]
    budget = trials(key, plan.settings[key], plan.options.trials, plan.options.fixed)
    left = range(len(rows), len(budget) + plan.options.refine)
    for at in tqdm(left, desc=key, unit="trial", position=1, leave=False, disable=hidden()):
        settings = budget[at] if at < len(budget) else between(rows, plan)
        if settings is None:
            break
        rows.append(attempt(plan, key, settings, rows))
        if ranks.is_first():
            append_line(plan.folder.trials, rows[-1])
    return rows


def between(rows: Sequence[Row], plan: Plan) -> Settings | None:
    """Bisect: between the best setting that meets the level and the one that only just does not.

    Where all meet it, go on beyond the best, away from the next best that leads to what was not
    tried: the grid ended too soon. None where none meets it, or all that comes next was tried.
    """
    met = sorted((r for r in rows if meets(r, plan)), key=lambda r: -(r[utility(plan)] or 0.0))
    short = [row for row in rows if row["evaluated"] and not meets(row, plan)]
    short.sort(key=lambda row: shortfall(row, plan))
    if not met:
        return None
    best, tried = Settings(**met[0]["settings"]), [Settings(**row["settings"]) for row in rows]
    way, others = (halfway, short[:1]) if short else (beyond, met[1:])
    ways = (way(best, Settings(**row["settings"])) for row in others)
    return next((found for found in ways if found not in tried), None)


def attempt(plan: Plan, key: str, settings: Settings, earlier: Sequence[Row]) -> Row:
    """Unlearn once; evaluate in full unless a quick evaluation rules the setting out."""
    seed = plan.options.seeds[0] + SEARCH_SEED
    model, _, _ = unlearn(plan.benchmark, key, seed, settings)
    quick = ranks.from_first(lambda: plan.benchmark.quick_eval(model))
    row: dict[str, Any] = {"method": key, "seed": seed, "settings": dataclasses.asdict(settings)}
    row |= {
        "quick_utility": quick_utility(quick, plan),
        "quick_exact": quick_exact(quick, plan),
    }
    if ruled_out(row, plan, earlier):
        return row | {"evaluated": False}
    numbers = ranks.from_first(lambda: plan.benchmark.evaluate(model)).numbers
    shown = (target(plan)[0], utility(plan))
    return row | {"evaluated": True, **{name: numbers[name] for name in shown}}


def ruled_out(row: Row, plan: Plan, earlier: Sequence[Row]) -> bool:
    """Tell whether generating answers could not make this setting the chosen one.

    Where what a quick evaluation finds reproduced bounds the number to match from below, it can be
    too much already. A setting whose probabilities are clearly worse than those of one that meets
    the level already will not win either.
    """
    name, level = target(plan)
    bounded = name in plan.benchmark.layout.bounded
    remembers = bounded and row["quick_exact"] > max(2 * level, 0.1)
    met = [r["quick_utility"] for r in earlier if r["evaluated"] and meets(r, plan)]
    return remembers or row["quick_utility"] < 0.8 * max(met, default=0.0)


def quick_utility(numbers: dict[str, float | None], plan: Plan) -> float:
    """Take the harmonic mean of what a quick evaluation says about utility."""
    found = [numbers[name] for name in plan.benchmark.layout.quick_eval]
    return 0.0 if None in found else harmonic_mean([max(v, 0.0) for v in found if v is not None])


def quick_exact(numbers: dict[str, float | None], plan: Plan) -> float | None:
    """Read how much of the forget set is reproduced; None if a quick evaluation cannot tell."""
    name = plan.benchmark.layout.reproduced
    return None if name is None else numbers[name]


def utility(plan: Plan) -> str:
    """Name of the number that a matched comparison maximises."""
    return plan.benchmark.layout.utility.key


def target(plan: Plan) -> tuple[str, float]:
    """Metric and level of the comparison."""
    assert plan.options.match is not None
    return plan.options.match


def meets(row: Row, plan: Plan) -> bool:
    """Tell whether an evaluated trial has forgotten enough."""
    return shortfall(row, plan) <= 0


def shortfall(row: Row, plan: Plan) -> float:
    """Measure how far a trial is from the level; 0 or less where it meets it."""
    name, level = target(plan)
    value = row.get(name)
    if value is None:
        return float("inf")
    return level - value if plan.benchmark.layout.levels[name] else value - level


def choose(rows: Sequence[Row], plan: Plan) -> Row:
    """Of the trials that meet the level the one with the best utility, else the closest."""
    good = [row for row in rows if meets(row, plan)]
    if good:
        return max(good, key=lambda row: row[utility(plan)] or 0.0)
    return min(rows, key=lambda row: (shortfall(row, plan), row["quick_exact"] or 0.0))


def verdict(rows: Sequence[Row], best: Row, start: Settings, plan: Plan) -> str:
    """Report in a line what the search cost and what it found."""
    name, level = target(plan)
    looked = sum(row["evaluated"] for row in rows)
    before = dataclasses.asdict(start)
    changed = {k: v for k, v in best["settings"].items() if v != before[k]}
    budget = plan.options.trials + plan.options.refine
    return (
        f"{len(rows)} trials of {budget}, {looked} fully evaluated; the best "
        f"{'meets' if meets(best, plan) else 'does NOT meet'} {name}={level:g} with "
        f"{best.get(name)} and utility {best.get(utility(plan))}; "
        f"changed from the preset: {changed or 'nothing'}."
    )
