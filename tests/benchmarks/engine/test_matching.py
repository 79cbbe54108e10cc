"""Matched forgetting: each method as weak as it can be and still forget enough."""

import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks import methods
from benchmarks.engine import matching
from benchmarks.engine.matching import following, matched, weakest, with_strength
from benchmarks.engine.runner import Plan, begin
from benchmarks.report.results import read_lines
from tests.benchmarks.toy import ToyBenchmark, options


def begun(output: Path, **changes: Any) -> Plan:
    given = options(output, **{"match": "forget_rouge=0.3", "trials": 6, **changes})
    return begin(ToyBenchmark(given), given)


@pytest.mark.parametrize("least", [1.0, 3.7, 0.01, 900.0])
def test_bisection_finds_the_weakest_that_meets_a_level(least: float) -> None:
    tried: dict[float, float] = {}
    for _ in range(16):
        strength = following(tried)
        assert strength not in tried
        tried[strength] = least - strength
    assert least <= weakest(tried) <= 1.02 * least


@pytest.mark.parametrize("key", ["dual_adamw", "npo"])
def test_a_method_meets_the_level_and_only_just(key: str, tmp_path: Path) -> None:
    started = begun(tmp_path, methods=key)
    plan = matched(started)
    rows = read_lines(plan.folder.trials)
    met = [row["strength"] for row in rows if row["shortfall"] <= 0]
    missed = [row["strength"] for row in rows if row["shortfall"] > 0]
    assert met and missed and max(missed) < min(met), "harder forgets more"
    knob = matching.knob_of(key)
    assert getattr(plan.settings[key], knob) != getattr(started.settings[key], knob)
    assert f"{knob}=" in plan.folder.described()["matched"][key]
    assert " meets forget_rouge=0.3" in plan.folder.described()["matched"][key]


def test_trials_are_never_repeated(tmp_path: Path) -> None:
    first = matched(begun(tmp_path, methods="npo", trials=3))
    plan = begun(tmp_path, methods="npo", trials=3)
    assert isinstance(plan.benchmark, ToyBenchmark)
    assert matched(plan).settings == first.settings
    assert plan.benchmark.evaluated == 0


@pytest.mark.parametrize(
    ("key", "numbers", "knob", "value"),
    [
        ("npo", {"forget_weight": 0.5}, "forget_weight", 2.0),
        ("dual_adamw", {"lr": 0.1}, "forget_lr", 0.4),
        ("grad_ascent", {"lr": 0.1}, "lr", 0.4),
        ("npo+alm", {"alpha": 3.0}, "alpha", 12.0),
        ("npo+alm", {"alpha": 0.5, "measure": "failure"}, "alpha", 1 - 0.5**4),
        ("rmu+alm", {"alpha": 0.8, "losses": "rmu"}, "alpha", 0.2),
    ],
)
def test_the_knob_is_turned(key: str, numbers: dict[str, Any], knob: str, value: float) -> None:
    found = with_strength(key, methods.settings_of(key, numbers), 4.0)
    assert math.isclose(getattr(found, knob), value)


def test_an_alpha_that_no_model_can_reach_is_not_tried() -> None:
    numbers = {"alpha": 0.5, "measure": "token_certificate", "tau": 0.3}
    settings = methods.settings_of("saul", numbers)
    assert with_strength("saul", settings, 1.1) is not None
    assert with_strength("saul", settings, 64.0) is None
