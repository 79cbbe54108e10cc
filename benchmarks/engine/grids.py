"""Settings that a matched comparison may try: a method's own knobs, around its preset."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from benchmarks.methods import Settings, is_controlled
from benchmarks.methods.forgetting import check_attainable

ALM = "+alm"
Factors = Mapping[str, tuple[float, ...]]

RATES = (0.25, 0.5, 1.0, 2.0, 4.0)
WEIGHTS = (0.1, 0.3, 1.0, 3.0)
ALPHAS = (0.5, 0.75, 1.0, 1.5)
FINE = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)

# Factors on the preset's values. Every grid has the learning rate and one or two knobs more: one is
# how hard the method forgets. That is its forget weight, or the rate of a forget side that has an
# AdamW of its own, from whose step a weight cancels. With the controller alpha takes its place.
KNOBS: dict[str, Factors] = {
    "grad_ascent": {"epochs": (0.2, 0.5, 1.0, 2.0)},
    "grad_diff": {"forget_weight": WEIGHTS},
    "npo": {"beta": (0.5, 1.0, 2.0, 4.0), "forget_weight": WEIGHTS},
    "simnpo": {"beta": (0.5, 1.0, 2.0, 4.0), "forget_weight": WEIGHTS},
    "single_adamw": {"forget_weight": WEIGHTS},
    "dual_adamw": {"forget_lr": (0.25, 0.5, 1.0, 2.0)},
    "sharp_min_max": {"rho_forget": (0.1, 1.0, 10.0), "forget_lr": (0.25, 0.5, 1.0, 2.0)},
    "relearning_resilient": {"rho_forget": (0.1, 1.0, 10.0), "forget_weight": WEIGHTS},
    "blur": {"forget_weight": WEIGHTS, "beta": (0.5, 1.0, 2.0, 4.0)},
    "pdu": {"epsilon": (0.3, 1.0, 3.0), "forget_weight": WEIGHTS},
    "rmu": {"coefficient": (0.5, 1.0, 2.0), "retain_weight": (0.3, 1.0, 3.0)},
    "saul": {"rho_forget": (0.1, 1.0, 10.0)},
    "saul_no_alm": {"rho_forget": (0.1, 1.0, 10.0), "forget_lr": (0.5, 1.0, 2.0)},
    "saul_no_sam": {"rho_retain": (0.1, 1.0, 10.0)},
    "saul_no_alm_no_sam": {"rho_retain": (0.1, 1.0, 10.0), "forget_lr": (0.5, 1.0, 2.0)},
}


def grid(key: str, preset: Settings, fixed: Collection[str] = ()) -> list[Settings]:
    """Every combination of a method's knobs but the fixed ones, the preset itself first."""
    return _distinct(_combinations(key, preset, fixed))


def _combinations(key: str, preset: Settings, fixed: Collection[str]) -> list[Settings]:
    factors = {"lr": RATES, **KNOBS.get(key.removesuffix(ALM), {"forget_weight": WEIGHTS})}
    if is_controlled(key):
        factors = {name: f for name, f in factors.items() if name != "forget_weight"}
        factors["alpha"] = ALPHAS
    factors = {name: f for name, f in factors.items() if name not in fixed}
    if fixed and len(factors) == 1:  # a knob alone is turned more finely
        factors = dict.fromkeys(factors, FINE)
    combinations = itertools.product(*factors.values())
    found = [_scaled(preset, dict(zip(factors, c, strict=True)), fixed) for c in combinations]
    return list(dict.fromkeys([preset, *(s for s in found if _is_attainable(key, s))]))


def _distinct(settings: Iterable[Settings]) -> list[Settings]:
    """Leave out what trains like one before: a forget side without a rate of its own has `lr`."""
    runs: dict[Settings, Settings] = {}
    for each in settings:
        rate = _of_its_own(each, "forget_lr")
        runs.setdefault(dataclasses.replace(each, forget_lr=rate), each)
    return list(runs.values())


def _is_attainable(key: str, settings: Settings) -> bool:
    """Tell whether some model could meet the constraint, if there is one."""
    try:
        if is_controlled(key) and not isinstance(settings.alpha, str):
            check_attainable(settings)
    except ValueError:
        return False
    return True


def trials(key: str, preset: Settings, budget: int, fixed: Collection[str] = ()) -> list[Settings]:
    """The preset and a random part of its method's grid, `budget` settings in all.

    The draw depends on the method's name alone, so that a search can be resumed; what would be run
    twice is left out of it afterwards, so that it stays the draw of the recorded searches.
    """
    first, *others = _combinations(key, preset, fixed)
    random.Random(key).shuffle(others)
    return _distinct([first, *others])[:budget]


def halfway(one: Settings, other: Settings) -> Settings:
    """The geometric mean of two settings: of each number in which they differ."""
    return _along(one, other, 0.5)


def beyond(one: Settings, other: Settings) -> Settings:
    """The settings as far from the first as that is from the other, on a scale of factors."""
    return _along(one, other, -1.0)


def _along(one: Settings, other: Settings, share: float) -> Settings:
    """Go that share of the way from one to the other."""
    changes: dict[str, Any] = {}
    for name in (field.name for field in dataclasses.fields(Settings)):
        ends = [_of_its_own(each, name) for each in (one, other)]
        if ends[0] != ends[1] and all(isinstance(end, int | float) and end > 0 for end in ends):
            found = ends[0] * (ends[1] / ends[0]) ** share
            changes[name] = max(1, round(found)) if isinstance(ends[0], int) else found
    return dataclasses.replace(one, **changes)


def _of_its_own(settings: Settings, name: str) -> Any:
    """A setting; the forget side's learning rate is the other's where it has none."""
    value = getattr(settings, name)
    return settings.lr if name == "forget_lr" and value is None else value


def _scaled(preset: Settings, factors: Mapping[str, float], fixed: Collection[str]) -> Settings:
    changes: dict[str, Any] = {n: _times(preset, n, factor) for n, factor in factors.items()}
    if preset.forget_lr is not None and "forget_lr" not in fixed:
        forget_lr = changes.get("forget_lr", preset.forget_lr)
        changes["forget_lr"] = forget_lr * factors.get("lr", 1.0)
    return dataclasses.replace(preset, **changes)


def _times(preset: Settings, name: str, factor: float) -> float | int | str:
    """A setting times a factor."""
    value = _of_its_own(preset, name)
    if isinstance(value, str):  # a level in words is what it is
        return value
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor
