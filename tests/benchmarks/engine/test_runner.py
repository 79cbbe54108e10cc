"""The runner: what is run, what is kept, and that a run goes on where it stopped."""

from pathlib import Path
from typing import Any

import torch

from benchmarks import methods
from benchmarks.engine.runner import Plan, begin, run, unlearn
from tests.benchmarks.toy import ToyBenchmark, flat, options

METHODS = "dual_adamw,saul"


def ran(output: Path, **changes: Any) -> Plan:
    given = options(output, **{"methods": METHODS, **changes})
    plan = begin(ToyBenchmark(given), given)
    run(plan)
    return plan


def test_every_run_is_a_line_with_a_trace_and_answers(tmp_path: Path) -> None:
    plan = ran(tmp_path, seeds=2, control=True)
    rows = plan.folder.rows()
    wanted = [(key, seed) for seed in (0, 1) for key in (methods.CONTROL, "dual_adamw", "saul")]
    known = [(row["method"], row["seed"]) for row in rows]
    assert known == [("original", 0), ("retrained", 0), *wanted]
    assert len(plan.folder.read("traces", "saul", 1)) == 6
    assert plan.folder.read("traces", "original", 0) == []
    assert plan.folder.read("answers", "original", 0)[0]["generation"] == "r"
    assert plan.folder.described()["methods"]["saul"]["epochs"] == 3


def test_what_is_finished_is_not_repeated(tmp_path: Path) -> None:
    ran(tmp_path, methods="dual_adamw")
    plan = ran(tmp_path)
    assert isinstance(plan.benchmark, ToyBenchmark)
    assert (plan.benchmark.evaluated, plan.benchmark.prepared) == (1, 1)
    again = ran(tmp_path).benchmark
    assert isinstance(again, ToyBenchmark)
    assert (again.evaluated, again.prepared) == (0, 0)


def test_a_run_that_was_cut_is_the_run_that_was_not(tmp_path: Path) -> None:
    whole, cut = ran(tmp_path / "a"), ran(tmp_path / "b")
    lines = cut.folder.results.read_bytes()
    cut.folder.results.write_bytes(lines[:-9])
    (*_, mine), (*_, its) = (plan.folder.rows() for plan in (ran(tmp_path / "b"), whole))
    assert {k: v for k, v in mine.items() if k != "seconds"} == {
        k: v for k, v in its.items() if k != "seconds"
    }


def test_a_seed_is_a_run_and_the_original_stays(tmp_path: Path) -> None:
    plan = ran(tmp_path)
    plan.benchmark.prepare()
    before = flat(plan.benchmark.models["original"])
    (one, *_), (again, *_), (other, *_) = (
        unlearn(plan.benchmark, "saul", seed, plan.settings["saul"]) for seed in (3, 3, 4)
    )
    assert torch.equal(flat(one), flat(again))
    assert not torch.equal(flat(one), flat(other))
    assert torch.equal(flat(plan.benchmark.models["original"]), before)
