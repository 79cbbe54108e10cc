"""Compare methods at the same level of forgetting: bisect how hard each of them forgets."""

import dataclasses
import math
from collections.abc import Mapping

from tqdm import tqdm

from benchmarks import methods
from benchmarks.engine.runner import Plan, unlearn
from benchmarks.methods import Settings
from benchmarks.methods.forgetting import check_attainable
from benchmarks.report.results import append_line, read_lines

SEARCH_SEED = 1_000_000
"""Added to the first seed: no reported run has seen the batches a setting was chosen on."""

STRIDE = 4.0
"""Factor between strengths until the level lies between two of them."""


def matched(plan: Plan) -> Plan:
    """The plan with each method as weak as it can be and still forget as much as `--match` says.

    What says how hard a method forgets is its `knob`, or alpha with the controller. All else stays
    as in the preset. Trials are kept in `trials.jsonl` and never repeated.
    """
    chosen, verdicts = dict(plan.settings), {}
    keys = [key for key in plan.settings if key != methods.CONTROL]
    for key in tqdm(keys, desc="searches", unit="method"):
        chosen[key], verdicts[key] = search(plan, key)
        tqdm.write(f"{methods.label(key)}: {verdicts[key]}")
    plan.folder.remember({"matched": verdicts})
    return dataclasses.replace(plan, settings=chosen)


def search(plan: Plan, key: str) -> tuple[Settings, str]:
    """Bisect the strength of a method on a scale of factors of the preset's, 1 first."""
    name, level = plan.options.level(tuple(plan.benchmark.layout.levels))
    settings = plan.benchmark.resolved(plan.settings[key])
    known = [row for row in read_lines(plan.folder.trials) if row["method"] == key]
    tried: dict[float, float] = {row["strength"]: row["shortfall"] for row in known}
    for _ in range(plan.options.trials - len(tried)):
        strength = following(tried)
        stronger = with_strength(key, settings, strength)
        if stronger is None:
            break
        tried[strength] = shortfall(plan, key, stronger)
        row = {"method": key, "strength": strength, "shortfall": tried[strength]}
        append_line(plan.folder.trials, row)
    best = weakest(tried)
    found = with_strength(key, settings, best) or settings
    verb = "meets" if tried[best] <= 0 else "does NOT meet"
    told = f"{knob_of(key)}={getattr(found, knob_of(key))} {verb} {name}={level:g}"
    return found, f"{told}, of {len(tried)} trials"


def following(tried: Mapping[float, float]) -> float:
    """The strength to try next: stronger until the level is met, weaker until not, then between.

    >>> following({}), following({1.0: 0.5}), following({1.0: -0.1}), following({1.0: 1, 4.0: -1})
    (1.0, 4.0, 0.25, 2.0)
    """
    met = [strength for strength, missing in tried.items() if missing <= 0]
    if not met:
        return STRIDE * max(tried) if tried else 1.0
    weaker = [strength for strength in tried if strength < min(met)]
    return math.sqrt(max(weaker) * min(met)) if weaker else min(met) / STRIDE


def weakest(tried: Mapping[float, float]) -> float:
    """The weakest strength that meets the level, else the one that comes closest."""
    met = [strength for strength, missing in tried.items() if missing <= 0]
    return min(met) if met else min(tried, key=lambda strength: tried[strength])


def knob_of(key: str) -> str:
    return "alpha" if methods.is_controlled(key) else methods.knob_of(key)


def with_strength(key: str, settings: Settings, strength: float) -> Settings | None:
    """The settings with the knob turned by a factor; None where no model could reach that alpha.

    A share of wrong answers comes closer to 1 instead, and an upper bound (RMU's losses) falls.
    """
    knob = knob_of(key)
    start = getattr(settings, knob)
    start = settings.lr if start is None else float(start)
    value = start * strength
    if knob == "alpha" and settings.losses == "rmu":
        value = start / strength
    elif knob == "alpha" and settings.measure != "token_nll":
        value = 1 - (1 - start) ** strength
    turned = dataclasses.replace(settings, **{knob: value})
    try:
        if knob == "alpha":
            check_attainable(turned)
    except ValueError:
        return None
    return turned


def shortfall(plan: Plan, key: str, settings: Settings) -> float:
    """Measure how far a run ends from the level; 0 or less where it meets it."""
    name, level = plan.options.level(tuple(plan.benchmark.layout.levels))
    model, _, _ = unlearn(plan.benchmark, key, plan.options.seed + SEARCH_SEED, settings)
    value = plan.benchmark.evaluate(model).numbers[name]
    if value is None:
        return math.inf
    return level - value if plan.benchmark.layout.levels[name] else value - level
