"""The runner: what is run, what is kept, and that a run goes on where it stopped."""

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import methods
from benchmarks.engine.benchmark import pairs
from benchmarks.engine.runner import Plan, begin_runs, run, unlearn
from tests.benchmarks.toy import ToyBenchmark, flat, options

METHODS = "dual_adamw,saul"


def ran(output: Path, **changes: Any) -> Plan:
    given = options(output, **{"methods": METHODS, **changes})
    plan = begin_runs(ToyBenchmark(given), given)
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
    assert plan.folder.read_settings()["methods"]["saul"]["epochs"] == 3


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


def test_each_epoch_visits_every_forget_item_once_in_a_new_order() -> None:
    drawn = [forget for _, forget in pairs(range(10), range(100), 4, 3, seed=0)]
    assert [len(batch) for batch in drawn] == [4, 4, 2] * 3
    epochs = [[*chain(*drawn[start : start + 3])] for start in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_retain_items_are_drawn_uniformly_with_replacement() -> None:
    counts = Counter(
        item for retain, _ in pairs(range(50), range(5), 8, 200, seed=0) for item in retain
    )
    assert counts.keys() == set(range(5))
    expected, deviation = 2000, (10_000 * 0.2 * 0.8) ** 0.5
    assert all(abs(count - expected) < 4 * deviation for count in counts.values())
    assert max(counts.values()) - min(counts.values()) > 0  # not a cycle through the set


@pytest.mark.parametrize(("forget", "retain", "name"), [([], [1], "forget"), ([1], [], "retain")])
def test_an_empty_set_is_refused(forget: list[int], retain: list[int], name: str) -> None:
    with pytest.raises(ValueError, match=rf"the {name} set is empty"):
        next(pairs(forget, retain, 1, 1, seed=0))


def test_pairs_have_equal_lengths_and_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = list(pairs("abcdefg", "xyz", 3, 2, seed=5))
    torch.manual_seed(2)
    assert first == list(pairs("abcdefg", "xyz", 3, 2, seed=5))
    assert first != list(pairs("abcdefg", "xyz", 3, 2, seed=6))
    assert all(len(retain) == len(forget) for retain, forget in first)
