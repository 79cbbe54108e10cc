"""A benchmark over two ranks is the same benchmark, and is written down once."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.engine import ranks as benchmark_ranks
from benchmarks.engine.runner import begin, run, unlearn
from benchmarks.methods import Settings
from benchmarks.methods.rmu import TopicBatch
from benchmarks.report.results import read_lines
from tests.benchmarks.methods.test_methods_rmu import SETTINGS, Wide
from tests.benchmarks.toy import Batch, batch, flat
from tests.benchmarks.toy_benchmark import ToyBenchmark, options
from tests.core.distributed import elastic
from tests.core.distributed.ranks import Ranks

METHODS = "dual_adamw,saul,npo+alm,sharp_min_max+alm,blur"
REPOSITORY = Path(__file__).parents[2]


def evaluations(rank: int, folder: Path) -> int:
    """Run the toy benchmark; how often this rank evaluated."""
    benchmark = ToyBenchmark()
    run(begin(benchmark, options(folder, "--methods", METHODS, "--alpha", "0.1")))
    return benchmark.evaluated


def test_two_ranks_give_the_numbers_of_one(ranks: Ranks, tmp_path: Path) -> None:
    folders = tmp_path / "alone", tmp_path / "pair"
    count = evaluations(0, folders[0])
    assert ranks(evaluations, folders[1], timeout=80) == [count, 0]
    alone, pair = (read_lines(folder / "results.jsonl") for folder in folders)
    for mine, its in zip(pair, alone, strict=True):
        numbers = {key for key, value in its.items() if isinstance(value, float)} - {"seconds"}
        assert {*mine} == {*its} and mine["method"] == its["method"]
        assert len(numbers) > 5
        for key in sorted(numbers):
            assert mine[key] == pytest.approx(its[key], rel=1e-7, abs=1e-9), (mine["method"], key)
    shares = [row["gate_open"] for row in pair if row["gate_open"] is not None]
    assert any(0 < share < 1 for share in shares), "a gate opens and closes"


class Topics(ToyBenchmark):
    """The toy with two topics that take turns."""

    def prepare(self) -> None:
        super().prepare()
        model = Wide()
        model.load_state_dict(self.models["original"].state_dict())
        self.models["original"] = model

    def batches(self, settings: Settings, seed: int) -> Iterator[tuple[Batch, Batch]]:
        for step, (retain, _) in enumerate(super().batches(settings, seed)):
            yield retain, TopicBatch(batch(5 + step % 2), step % 2)


def steered(rank: int, key: str) -> tuple[list[float], list[dict[str, Any]]]:
    """Weights and trace after a run with RMU's losses."""
    benchmark = Topics()
    benchmark.prepare()
    model, trace, _ = unlearn(benchmark, key, 0, replace(SETTINGS, epochs=4))
    return flat(model).tolist(), trace


@pytest.mark.parametrize("key", ["rmu", "saul"])
def test_two_ranks_steer_each_topic_as_one_does(ranks: Ranks, key: str) -> None:
    alone, trace = steered(0, key)
    pair = ranks(steered, key)
    assert pair[0] == pair[1], "both ranks hold the same weights and record the same steps"
    assert pair[0][0] == pytest.approx(alone, rel=1e-9, abs=1e-12)
    assert [step["topic"] for step in trace] == [0, 1] * 4
    assert [step.pop("status", None) for step in pair[0][1]] == [
        s.pop("status", None) for s in trace
    ]
    for mine, its in zip(pair[0][1], trace, strict=True):
        assert mine == pytest.approx(its, rel=1e-9, abs=1e-12)


def shared(rank: int, rows: int) -> list[int]:
    batch = {"input_ids": torch.arange(rows).reshape(rows, 1)}
    return benchmark_ranks.share(batch)["input_ids"].flatten().tolist()


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(4, [[0, 2], [1, 3]]), (3, [[0, 2], [1]]), (1, [[0], [0]])],
)
def test_every_rank_has_rows(ranks: Ranks, rows: int, expected: list[list[int]]) -> None:
    assert ranks(shared, rows) == expected


@pytest.mark.usefixtures("forks")
def test_torchrun_runs_the_script_as_it_is(tmp_path: Path, shared_models: Path) -> None:
    results, logs = tmp_path / "results", tmp_path / "logs"
    command = ["--quick", "--methods", "saul", "--no-control", "--epochs", "1", "--questions", "4"]
    command += ["--cache", str(shared_models), "--output", str(results)]
    path = str(REPOSITORY / "benchmarks" / "tofu.py")
    assert elastic.launch(elastic.script, path, *command, logs=logs) == [0, 0]
    lines = (results / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["method"] for line in lines] == ["original", "retrained", "saul"]
    said = [path.read_text().count("results.jsonl") for path in logs.rglob("stdout.log")]
    assert sorted(said) == [0, 1], "one report"
