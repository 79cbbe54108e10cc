"""Matched forgetting: equal budgets, cheap signals first, fresh seeds afterwards."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import methods
from benchmarks.engine import matching
from benchmarks.engine.grids import FINE, grid, halfway, trials
from benchmarks.engine.runner import Plan, begin, run
from benchmarks.report.results import ResultsFolder, read_lines
from benchmarks.tasks.tofu.layout import LAYOUT
from benchmarks.tasks.tofu.presets import TOFU
from tests.benchmarks.toy_benchmark import ToyBenchmark, options

TWO = ("--methods", "dual_adamw,saul")


def plan(path: Path, *arguments: str, level: str = "forget_rouge=0.2") -> Plan:
    return begin(ToyBenchmark(), options(path, *TWO, "--match", level, "--trials", "4", *arguments))


def trial(rouge: float | None, utility: float = 0.5, quick: float = 0.5) -> dict[str, Any]:
    found = {"evaluated": rouge is not None, "quick_utility": quick, "quick_exact": 0.0}
    return found | ({} if rouge is None else {"forget_rouge": rouge, "model_utility": utility})


@pytest.mark.parametrize("key", methods.names())
def test_every_grid_is_larger_than_the_budget_and_starts_with_the_preset(key: str) -> None:
    start = TOFU.preset("recommended", "forget", key).settings
    assert grid(key, start)[0] == start
    assert len(set(grid(key, start))) == len(grid(key, start)) > 8
    assert len(trials(key, start, 8)) == 8
    assert trials(key, start, 8) == trials(key, start, 16)[:8]


@pytest.mark.parametrize("key", methods.names())
def test_a_grid_turns_knobs_its_method_has(key: str) -> None:
    start = TOFU.preset("recommended", "forget", key).settings
    for name in ("lr", "alpha", "forget_weight"):
        values = {getattr(found, name) for found in grid(key, start)}
        controlled = key.endswith("+alm") or methods.METHODS[key].method.alm == "built in"
        if name == "lr" or ((name == "alpha") == controlled and name == "alpha"):
            assert len(values) > 1, name
        if name == "forget_weight" and controlled:
            assert len(values) == 1


@pytest.mark.parametrize("key", methods.names())
def test_what_is_fixed_stays_and_eight_settings_are_left_without_a_controller(key: str) -> None:
    start = replace(TOFU.preset("recommended", "forget", key).settings, lr=3e-4)
    found = grid(key, start, ["lr"])
    assert {settings.lr for settings in found} == {3e-4} and found[0] == start
    if not methods.is_controlled(key) and key != "grad_ascent":  # whose steps alone could vary
        assert len(found) >= 8


def test_a_rate_of_the_forget_side_that_is_fixed_stays() -> None:
    start = TOFU.preset("recommended", "forget", "saul").settings
    assert start.forget_lr is not None
    found = grid("saul", start, ["forget_lr"])
    assert len({each.lr for each in found}) > 1
    assert {each.forget_lr for each in found} == {start.forget_lr}


@pytest.mark.parametrize("key", ["dual_adamw", "sharp_min_max", "saul_no_alm"])
def test_a_forget_side_with_an_optimizer_of_its_own_is_searched_by_its_rate(key: str) -> None:
    start = TOFU.preset("recommended", "forget", key).settings
    found = grid(key, start, ["lr"])
    assert len({each.forget_weight for each in found}) == 1  # which AdamW cancels
    assert len({each.forget_lr for each in found}) > 2


def test_no_run_is_tried_twice() -> None:
    start = replace(TOFU.preset("recommended", "forget", "dual_adamw").settings, lr=3e-4)
    assert start.forget_lr is None, "which is the other side's rate"
    for found in (grid("dual_adamw", start, ["lr"]), trials("dual_adamw", start, 8, ["lr"])):
        rates = [start.lr if each.forget_lr is None else each.forget_lr for each in found]
        assert sorted(rates) == [3e-4 * factor for factor in FINE]
    everything = grid("dual_adamw", start)
    pairs = {(each.lr, each.forget_lr or each.lr) for each in everything}
    assert len(pairs) == len(everything) == 5 * 4


def test_a_grid_leaves_out_what_no_model_could_meet() -> None:
    start = TOFU.preset("recommended", "forget", "npo+alm").settings
    assert start.measure == "failure" and start.alpha == 0.95
    assert {found.alpha for found in grid("npo+alm", start)} == {0.95, 0.95 * 0.5, 0.95 * 0.75}
    nats = replace(start, measure="token_nll", alpha=4.0)
    assert max(float(found.alpha) for found in grid("npo+alm", nats)) == 6.0


def test_a_forget_side_with_a_rate_of_its_own_follows_the_other_side() -> None:
    start = TOFU.preset("recommended", "forget", "saul").settings
    assert start.forget_lr is not None
    found = {each.lr: each.forget_lr for each in grid("saul", start)}
    assert len(found) == 5
    for lr, forget_lr in found.items():
        assert forget_lr == pytest.approx(lr * start.forget_lr / start.lr)


def test_every_method_gets_the_same_number_of_trials_and_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matching.matched(plan(tmp_path))
    found = [row["method"] for row in read_lines(tmp_path / "trials.jsonl")]
    assert found == ["dual_adamw"] * 4 + ["saul"] * 4
    assert capsys.readouterr().out.count("4 trials of 4") == 2
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert all("4 trials of 4" in settings["matched"][key] for key in ("dual_adamw", "saul"))


@pytest.mark.parametrize("limit", [0.05, 0.2, 0.35])
def test_a_finer_search_halves_what_lies_between_enough_and_too_little(
    tmp_path: Path, limit: float
) -> None:
    words = ("--methods", "dual_adamw", "--fix", "lr", "--trials", "8", "--refine", "5")
    told = plan(tmp_path, *words, level=f"forget_rouge={limit}")
    rows = matching.search(told, "dual_adamw")
    assert rows == read_lines(tmp_path / "trials.jsonl") == matching.search(told, "dual_adamw")
    assert len(rows) == 13
    mild, strong = 0.02, 0.04  # the coarse search: too little is forgotten, and enough
    for row in rows[8:]:
        rate = row["settings"]["forget_lr"]
        assert rate == pytest.approx(math.sqrt(mild * strong), rel=1e-12)
        mild, strong = (mild, rate) if row["forget_rouge"] <= limit else (rate, strong)
    best = matching.choose(rows, told)
    assert best["forget_rouge"] <= limit and best["settings"]["forget_lr"] == strong


def test_a_finer_search_goes_beyond_a_grid_that_ended_too_soon(tmp_path: Path) -> None:
    told = plan(tmp_path, "--methods", "dual_adamw")
    strong, mild = (
        trial(0.01, used) | {"settings": vars(replace(told.settings["dual_adamw"], forget_lr=rate))}
        for used, rate in ((0.5, 0.08), (0.6, 0.02))
    )
    found = matching.between([strong, mild], told)
    assert found is not None and found.forget_lr == pytest.approx(0.005)
    short = trial(0.9, 0.9) | {"settings": vars(found)}
    found = matching.between([strong, mild, short], told)
    assert found is not None and found.forget_lr == pytest.approx(0.01)
    assert matching.between([strong], told) is None
    known, weak = (
        trial(0.01, used) | {"settings": vars(replace(told.settings["dual_adamw"], forget_lr=rate))}
        for used, rate in ((0.2, 0.005), (0.1, 0.01))
    )
    assert matching.between([strong, mild, known], told) is None  # all that comes next was tried
    found = matching.between([strong, mild, known, weak], told)
    assert found is not None and found.forget_lr == pytest.approx(0.04)


@pytest.mark.parametrize("level", ["forget_rouge=0.000001"])
def test_a_finer_search_ends_where_there_is_nothing_to_halve(tmp_path: Path, level: str) -> None:
    told = plan(tmp_path, "--methods", "saul", "--refine", "3", level=level)
    rows = matching.search(told, "saul")
    assert len(rows) == 4
    assert "4 trials of 7" in matching.verdict(rows, rows[0], told.settings["saul"], told)


def test_two_settings_are_halved_in_each_number_in_which_they_differ() -> None:
    one = replace(TOFU.preset("recommended", "forget", "npo").settings, lr=0.01, forget_lr=None)
    other = replace(
        one, beta=16 * one.beta, epochs=4 * one.epochs, forget_lr=0.04, measure="token_nll"
    )
    found = halfway(one, other)
    assert found.beta == pytest.approx(4 * one.beta) and found.epochs == 2 * one.epochs
    assert found.forget_lr == pytest.approx(0.02)  # none of its own is the other side's
    assert replace(found, beta=one.beta, epochs=one.epochs, forget_lr=None) == one


@pytest.mark.parametrize(
    "words", [("--refine", "2"), ("--match", "forget_rouge=1", "--refine", "-1")]
)
def test_a_finer_search_of_nothing_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"--refine .* --match"):
        options(tmp_path, *TWO, *words)


@pytest.mark.parametrize(("before", "now"), [("0", "3"), ("3", "0"), ("3", "4")])
def test_another_finer_search_is_no_part_of_the_same_table(
    tmp_path: Path, before: str, now: str
) -> None:
    """Refuse it: the runs on fresh seeds are those of what the first search chose."""
    matching.matched(plan(tmp_path, "--methods", "saul", "--refine", before))
    with pytest.raises(ValueError, match=rf"refine was {before} and is now {now}"):
        plan(tmp_path, "--methods", "saul", "--refine", now)
    plan(tmp_path, "--methods", "saul", "--refine", before)


def test_a_search_of_another_method_keeps_what_is_told_of_the_first(tmp_path: Path) -> None:
    for key in ("dual_adamw", "saul"):
        matching.matched(plan(tmp_path, "--methods", key))
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["matched"].keys() == {"dual_adamw", "saul"}


def test_trials_use_a_seed_no_report_uses_and_are_not_repeated(tmp_path: Path) -> None:
    first = matching.matched(plan(tmp_path, "--seeds", "2"))
    run(first)
    rows = read_lines(tmp_path / "trials.jsonl")
    reported = {row["seed"] for row in ResultsFolder(tmp_path).rows()}
    assert not reported & {row["seed"] for row in rows}
    again = plan(tmp_path, "--seeds", "2")
    assert matching.matched(again).settings == first.settings
    assert read_lines(tmp_path / "trials.jsonl") == rows
    assert again.benchmark.evaluated == 0


def test_the_reported_run_has_the_chosen_settings(tmp_path: Path) -> None:
    chosen = matching.matched(plan(tmp_path, level="forget_rouge=0.4"))
    best = matching.choose(matching.search(chosen, "saul"), chosen)
    assert best["settings"]["lr"] == chosen.settings["saul"].lr
    assert matching.meets(best, chosen)


def test_of_those_that_meet_the_level_the_most_useful_is_chosen(tmp_path: Path) -> None:
    rows = [trial(0.1, 0.4), trial(0.19, 0.7), trial(0.21, 0.9), trial(None)]
    assert matching.choose(rows, plan(tmp_path)) is rows[1]


def test_if_none_meets_the_level_the_closest_is_chosen(tmp_path: Path) -> None:
    rows = [trial(0.5, 0.9), trial(0.3, 0.1), trial(None)]
    assert matching.choose(rows, plan(tmp_path)) is rows[1]


def test_a_level_of_a_loss_is_met_from_above(tmp_path: Path) -> None:
    at = plan(tmp_path, level="forget_loss=3")
    rows = [trial(0.0) | {"forget_loss": 2.0}, trial(0.0) | {"forget_loss": 4.0}]
    assert [matching.meets(row, at) for row in rows] == [False, True]


def test_a_glance_rules_out_what_remembers_or_is_clearly_worse(tmp_path: Path) -> None:
    at = plan(tmp_path)
    earlier = [trial(0.1, 0.6, quick=0.5)]
    assert not matching.ruled_out(trial(None, quick=0.45), at, earlier)
    assert matching.ruled_out(trial(None, quick=0.3), at, earlier)
    assert not matching.ruled_out(trial(None, quick=0.3), at, [trial(0.9, quick=0.5)])
    assert matching.ruled_out(trial(None) | {"quick_exact": 0.9}, at, [])


def test_where_a_glance_cannot_tell_only_utility_rules_out(tmp_path: Path) -> None:
    at = plan(tmp_path)
    at.benchmark.layout = replace(LAYOUT, reproduced=None, bounded=frozenset())
    found = matching.attempt(at, "saul", at.settings["saul"], [])
    assert found["quick_exact"] is None
    assert found["evaluated"]
    assert matching.choose([trial(0.9) | found], at)
