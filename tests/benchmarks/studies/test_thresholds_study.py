"""`benchmarks/studies/thresholds`: which runs, what is written, what is chosen."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine.levels import resolved
from benchmarks.methods.settings import Settings, parse
from benchmarks.report.results import ResultsFolder
from benchmarks.studies.thresholds import __main__ as thresholds
from benchmarks.studies.thresholds.report import (
    aimed,
    choice,
    choice_for_others,
    publish,
    reach_table,
    reached,
    with_privleak,
)
from benchmarks.studies.thresholds.variants import (
    PARTS,
    RATES,
    candidates,
    others,
    presets,
    pressures,
    targets,
)
from tests.benchmarks.toy_benchmark import ToyBenchmark
from torch_alm import ALMConstraint

ONLY = ("--only", "none", "level_share-gradient")


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, shared_models: Path
) -> tuple[Path, list[str]]:
    """Two variants at one learning rate on the quick world."""
    root = tmp_path_factory.mktemp("thresholds")
    arguments = ["targets", "--quick", *ONLY, "--rates", "3e-3", "--output", str(root / "out")]
    arguments += ["--cache", str(shared_models)]
    assert thresholds.main(arguments) == 0
    return root / "out" / "world-quick-targets", arguments


def test_every_run_is_a_line_with_the_numbers_of_the_table(
    finished: tuple[Path, list[str]],
) -> None:
    rows = ResultsFolder(finished[0]).rows()
    assert [row["method"] for row in rows] == [
        "original", "retrained", "none@0.003", "level_share-gradient@0.003",
    ]  # fmt: skip
    plain, held = rows[2:]
    assert plain["gate_open"] is None and 0 < held["gate_open"] < 1
    assert held["alpha"] == 0.95 and held["met_at"] > 1 and held["status"]
    assert held["model_utility"] > plain["model_utility"], "a target spares what is kept"
    assert held["forget_exact_match"] < rows[0]["forget_exact_match"]


def test_tables_and_figures_are_written_for_light_and_dark(
    finished: tuple[Path, list[str]],
) -> None:
    path, arguments = finished
    text = (path / "report.md").read_text()
    assert "| original model |" in text and "| retrained model |" in text
    assert "answer by answer, gradient |" in text and "[start:table]" in text
    light, dark = ((path / f"targets-{theme}.png").read_bytes() for theme in ("light", "dark"))
    assert light[:4] == dark[:4] == b"\x89PNG" and light != dark
    (path / "report.md").unlink()
    assert thresholds.main([*arguments, "--tables"]) == 0
    assert (path / "report.md").read_text() == text


def test_finished_runs_are_not_repeated(finished: tuple[Path, list[str]]) -> None:
    path, arguments = finished
    before = (path / "results.jsonl").read_bytes()
    assert thresholds.main(arguments) == 0
    assert (path / "results.jsonl").read_bytes() == before
    assert json.loads((path / "settings.json").read_text())["data"] == "world-quick"


def test_the_grid_is_the_one_announced() -> None:
    assert len(RATES) == 4 and max(RATES) == 10 * min(RATES)
    assert {one.settings.scale for one in targets("forget")[1:]} == {"gradient", "step"}
    steps = [one.settings for one in pressures("forget") if one.settings.scale == "step"]
    assert {(s.mu, s.multiplier) for s in steps} == {
        (mu, start) for mu in (1e-3, 1e-2, 1e-1, 1.0) for start in (0.0, 1.0)
    }
    for part in (targets, pressures, candidates, others, presets):
        keys = [one.key for one in part("forget")]
        assert len(set(keys)) == len(keys)
    for one in (*targets("forget"), *candidates("forget")):
        assert one.at(5e-4).lr == 5e-4
        if isinstance(one.settings.alpha, float) and one.settings.measure != "level_share":
            assert resolved(one.settings, ToyBenchmark()) == one.settings


def row(variant: str, rate: float, **numbers: float) -> dict[str, Any]:
    defaults = {"forget_exact_match": 0.0, "membership_auc": 0.4, "retain_exact_match": 0.9}
    return {"method": f"{variant}@{rate}", "variant": variant, "rate": rate, **defaults, **numbers}


def test_the_choice_is_the_rule() -> None:
    retrained = {"method": "retrained", "membership_auc": 0.4}
    rows = [
        retrained,
        *(row("steady", rate, retain_exact_match=0.8) for rate in (1, 2)),
        row("uneven", 1, retain_exact_match=1.0),
        row("uneven", 2, retain_exact_match=0.7),
        row("remembers", 1, retain_exact_match=1.0),
        row("remembers", 2, retain_exact_match=1.0, forget_exact_match=0.1),
        *(row("recognised", rate, retain_exact_match=1.0, membership_auc=0.6) for rate in (1, 2)),
        row("fails", 1, retain_exact_match=1.0),
        {"method": "fails@2", "variant": "fails", "rate": 2, "failed": "why"},
    ]
    assert choice(rows) == "steady"
    assert choice([retrained, *rows[5:7]]) is None
    assert choice(rows[1:]) is None, "without a retrained model nothing says what is near it"


def test_others_are_chosen_by_how_many_meet_a_target_at_which_all_forget() -> None:
    def run(
        target: str, method: str, status: str, utility: float | None, exact: float = 0.0
    ) -> dict[str, Any]:
        key = f"{target}-{method}"
        numbers = {"model_utility": utility, "forget_exact_match": exact}
        return {"method": key, "variant": key, "status": status, **numbers}

    rows = [
        run("never_seen", "npo", "released", 0.9, exact=0.1),
        run("never_seen", "pdu", "released", 0.9),
        run("certificate", "npo", "released", 0.5),
        run("certificate", "pdu", "violated", 0.6),
        run("token_certificate", "npo", "satisfied", 0.4),
        run("token_certificate", "pdu", "violated", None),
        run("level_share", "npo", "violated", 1.0),
        run("level_share", "pdu", "violated", 1.0),
    ]
    assert reached(aimed(rows, "certificate")) == (1, pytest.approx(0.55))
    assert reached(aimed(rows, "token_certificate")) == (1, pytest.approx(0.2))
    assert choice_for_others(rows) == "certificate"
    assert choice_for_others(rows[:2]) == "never_seen"
    assert "| certificate ≥ 0.95 | 2 of 2 | 1 of 2 | 0.550 |" in reach_table(rows)


def test_targets_for_others_differ_in_the_target_alone() -> None:
    found = [dataclasses.asdict(o.settings) for o in others("forget") if o.method == "npo+alm"]
    differ = {name for name in found[0] if len({repr(one[name]) for one in found}) > 1}
    assert len(found) == 6 and differ == {"measure", "alpha"}


def test_privleak_is_relative_to_the_retrained_model() -> None:
    rows = [{"method": "retrained", "membership_auc": 0.5}, row("a", 1, membership_auc=1.0)]
    assert [r["privleak"] for r in with_privleak(rows)] == [0.0, -100.0]
    assert with_privleak(rows[1:])[0]["privleak"] is None


def test_a_run_that_cannot_be_made_is_a_line_that_says_why(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path)
    folder.claim({"split": "forget", "methods": {}})
    folder.append({"method": "retrained", "seed": 0, "membership_auc": 0.5, "model_utility": 0.9})
    failed = {"method": "rate-step@0.1", "variant": "rate-step", "rate": 0.1, "seed": 0}
    folder.append({**failed, "failed": "not reached"})
    numbers = {"model_utility": 0.5, "forget_loss": 2.0, "membership_auc": 0.6}
    folder.append({**failed, "method": "none@0.1", "variant": "none", **numbers})
    publish(tmp_path, "targets")
    assert "seed 0: not reached" in (tmp_path / "report.md").read_text()


def test_an_epoch_is_beyond_alpha_where_its_mean_is() -> None:
    trace = [{"lambda": 1.0, "violation": c} for c in (1.0, 0.5, -0.4, 0.2, -0.1, -0.3, -9.0)]
    assert thresholds.overshoot_epoch(trace, 2) == pytest.approx(0.2)
    assert thresholds.overshoot_epoch(trace[:1], 2) == 0.0, "no whole epoch was seen"
    assert thresholds.overshoot_epoch([{"step": 1}], 2) is None, "no constraint"


@pytest.mark.parametrize(("split", "examples"), [("forget01", 40), ("forget05", 200)])
def test_every_way_to_overshoot_is_a_constraint_and_takes_fifty_steps(
    split: str, examples: int
) -> None:
    ways = PARTS["overshoot"](split)
    assert len({one.key for one in ways}) == len(ways) == 16
    for one in ways:
        given = {**one.settings.controller(), "alpha": 0.5}
        found = ALMConstraint(None, **given)
        is_found = one.settings.mu == "auto"
        assert found.mu == (0.0 if is_found else 0.1) and not (is_found and found.rules)
        assert math.ceil(examples / one.settings.batch_size) * one.settings.epochs == 50


def test_a_mu_that_is_found_is_a_word_among_numbers() -> None:
    assert parse("mu", "auto") == Settings(mu="auto").mu == "auto" and parse("mu", "0.5") == 0.5
    with pytest.raises(ValueError, match="mu is -1"):
        Settings(mu=-1.0)
