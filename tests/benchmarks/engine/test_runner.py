"""The loop over runs: what is done once, what is repeated, and what is refused."""

import json
import signal
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.engine.digest import digest
from benchmarks.engine.runner import begin, run, unlearn
from benchmarks.report.results import ResultsFolder, read_lines
from benchmarks.tasks.tofu.presets import TOFU
from tests.benchmarks.toy_benchmark import ToyBenchmark, options

TWO = ("--methods", "dual_adamw,saul")


def numbers(path: Path) -> list[dict[str, Any]]:
    """The lines of the results without what no two runs share."""
    rows = ResultsFolder(path).rows()
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def complete(path: Path, *arguments: str) -> ToyBenchmark:
    benchmark = ToyBenchmark()
    run(begin(benchmark, options(path, *arguments)))
    return benchmark


def test_one_line_per_method_and_seed_after_the_reference_models(tmp_path: Path) -> None:
    complete(tmp_path, *TWO, "--seed", "5", "--seeds", "2")
    assert [(row["method"], row["seed"]) for row in numbers(tmp_path)] == [
        ("original", 5),
        ("retrained", 5),
        ("dual_adamw", 5),
        ("saul", 5),
        ("dual_adamw", 6),
        ("saul", 6),
    ]


def test_the_seed_decides_the_run(tmp_path: Path) -> None:
    complete(tmp_path / "a", *TWO, "--seeds", "2")
    complete(tmp_path / "b", *TWO, "--seed", "1")
    first, second = numbers(tmp_path / "a"), numbers(tmp_path / "b")
    assert first[4:] == second[2:]
    assert first[2]["forget_loss"] != first[4]["forget_loss"]


def test_finished_runs_are_not_repeated_and_new_ones_are_added(tmp_path: Path) -> None:
    complete(tmp_path, "--methods", "saul")
    before = numbers(tmp_path)
    again = complete(tmp_path, *TWO)
    assert again.evaluated == 1
    assert numbers(tmp_path)[: len(before)] == before
    assert [row["method"] for row in numbers(tmp_path)][3:] == ["dual_adamw"]


def test_with_nothing_left_no_model_is_loaded(tmp_path: Path) -> None:
    complete(tmp_path, *TWO)
    assert complete(tmp_path, *TWO).prepared == 0


def test_resuming_gives_what_never_stopping_gives(tmp_path: Path) -> None:
    complete(tmp_path / "whole", *TWO, "--seeds", "2")
    complete(tmp_path / "parts", *TWO)
    results = tmp_path / "parts" / "results.jsonl"
    results.write_bytes(results.read_bytes()[:-40])
    complete(tmp_path / "parts", *TWO, "--seeds", "2")
    assert numbers(tmp_path / "parts") == numbers(tmp_path / "whole")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--alpha", "7"), "alpha"),
        (("--preset", "paper"), "preset"),
        (("--set", "weight_decay=0.1"), "weight_decay"),
        (("--quick",), "quick"),
    ],
)
def test_other_settings_are_refused_and_nothing_is_lost(
    arguments: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    complete(tmp_path, *TWO)
    content = {file: file.read_bytes() for file in tmp_path.rglob("*.json*")}
    benchmark = ToyBenchmark()
    with pytest.raises(ValueError, match=rf"{named}.*--output, or --overwrite"):
        begin(benchmark, options(tmp_path, *TWO, *arguments))
    assert benchmark.prepared == 0
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.json*")} == content


def test_another_benchmark_is_refused(tmp_path: Path) -> None:
    complete(tmp_path, *TWO)
    with pytest.raises(ValueError, match="benchmark was 'toy' and is now 'other'"):
        begin(ToyBenchmark(benchmark="other"), options(tmp_path, *TWO))


def test_overwrite_starts_again(tmp_path: Path) -> None:
    complete(tmp_path, *TWO)
    complete(tmp_path, "--methods", "saul", "--alpha", "7", "--overwrite")
    assert [row["method"] for row in numbers(tmp_path)] == ["original", "retrained", "saul"]
    assert not (tmp_path / "traces" / "dual_adamw-seed0.jsonl").exists()
    assert json.loads((tmp_path / "settings.json").read_text())["methods"].keys() == {"saul"}


def test_each_step_leaves_a_line_in_the_trace(tmp_path: Path) -> None:
    complete(tmp_path, *TWO)
    steps = read_lines(tmp_path / "traces" / "saul-seed0.jsonl")
    assert [row["step"] for row in steps] == list(range(1, 7))
    assert steps[-1].keys() >= {"lambda", "violation", "gate_open", "forget_loss", "retain_loss"}
    row = ResultsFolder(tmp_path).rows()[-1]
    assert row["lambda"] == steps[-1]["lambda"]
    assert row["gate_open"] == sum(step["gate_open"] for step in steps) / 6


def test_without_a_controller_there_is_no_gate_and_no_lambda(tmp_path: Path) -> None:
    complete(tmp_path, "--methods", "dual_adamw")
    for row in ResultsFolder(tmp_path).rows():
        assert row["gate_open"] is None
        assert row["lambda"] is None


def test_the_model_to_unlearn_from_stays_as_it_was() -> None:
    benchmark = ToyBenchmark()
    benchmark.prepare()
    before = {k: v.clone() for k, v in benchmark.models["original"].state_dict().items()}
    chosen = begin_settings(benchmark)
    model, trace, _ = unlearn(benchmark, "saul", 0, chosen)
    assert len(trace) == 6
    after = benchmark.models["original"].state_dict()
    assert all((after[k] == v).all() for k, v in before.items())
    assert any((model.state_dict()[k] != v).any() for k, v in before.items())


def begin_settings(benchmark: ToyBenchmark) -> Any:
    return TOFU.preset("recommended", benchmark.split, "saul", {"epochs": 3, "lr": 0.02}).settings


class Dropping(ToyBenchmark):
    """A benchmark whose model drops hidden units while it is trained."""

    def reference(self, key: str) -> nn.Module:
        model: Any = super().reference(key)
        model.hidden = nn.Sequential(model.hidden, nn.Dropout(0.3))
        return model.eval()


def test_a_run_starts_from_its_own_random_state_in_training_mode() -> None:
    plain, dropping = ToyBenchmark(), Dropping()
    losses = []
    for benchmark, noise in ((plain, 1), (dropping, 1), (dropping, 2)):
        benchmark.prepare()
        torch.manual_seed(noise)
        model, trace, _ = unlearn(benchmark, "saul", 0, begin_settings(benchmark))
        assert not model.training
        losses.append([row["forget_loss"] for row in trace])
    assert losses[1] == losses[2] != losses[0]


def test_methods_are_told_when_an_epoch_ends() -> None:
    benchmark = ToyBenchmark()
    benchmark.prepare()
    changes = {"epochs": 3, "warmup_epochs": 1, "lr": 1e-3, "epsilon": 30.0}
    settings = TOFU.preset("recommended", benchmark.split, "pdu", changes).settings
    _, trace, _ = unlearn(benchmark, "pdu", 0, settings)
    nu = [row["retain_multiplier"] for row in trace]
    assert nu[0] == nu[1] == settings.retain_multiplier
    assert nu[2] < nu[1]


@pytest.mark.usefixtures("forks")
def test_a_kill_costs_at_most_one_run(tmp_path: Path) -> None:
    many = ("--methods", "dual_adamw,saul,grad_diff", "--seeds", "3")
    process = get_context("forkserver").Process(target=complete, args=(tmp_path / "killed", *many))
    process.start()
    results = tmp_path / "killed" / "results.jsonl"
    while not (results.exists() and results.read_bytes().count(b"\n") >= 4):
        assert process.is_alive(), "finished before it could be killed"
        time.sleep(0.01)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    survived = len(results.read_bytes().splitlines())
    benchmark = complete(tmp_path / "killed", *many)
    assert benchmark.evaluated <= 11 - survived + 1
    complete(tmp_path / "whole", *many)
    assert numbers(tmp_path / "killed") == numbers(tmp_path / "whole")


def test_progress_names_the_run_and_the_time_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    complete(tmp_path, *TWO)
    shown = capsys.readouterr().err
    assert "runs: 100%" in shown
    assert "saul, seed 0" in shown
    assert "<" in shown, "tqdm prints elapsed<remaining"


class Reading(ToyBenchmark):
    """Depends on a folder and a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def sources(self) -> dict[str, Path]:
        return {"data": self.folder, "prose": self.folder / "a.txt", "model": Path("a/name")}


@pytest.mark.parametrize(
    ("name", "content", "differs"),
    [
        ("rows.json", "2", "files.data"),
        ("more.csv", "1", "files.data"),
        ("a.txt", "3", "files.data"),
        ("below/rows.json", "3", "files.data"),
        ("below/below/rows.json", "3", None),
        (".hidden.json", "1", None),
        ("notes.md", "1", None),
    ],
)
def test_results_of_other_files_are_not_mixed(
    name: str, content: str, differs: str | None, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    (folder / "below" / "below").mkdir(parents=True)
    for file in ("rows.json", "a.txt"):
        (folder / file).write_text("1")
    begin(Reading(folder), options(tmp_path / "out", "--methods", "saul"))
    ResultsFolder(tmp_path / "out").append({"method": "saul", "seed": 0})
    (folder / name).write_text(content)
    if differs is None:
        begin(Reading(folder), options(tmp_path / "out", "--methods", "saul"))
        return
    with pytest.raises(ValueError, match=rf"other settings: {differs} was"):
        begin(Reading(folder), options(tmp_path / "out", "--methods", "saul"))


def test_a_name_on_the_hub_has_no_digest_and_a_link_that_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1")
    (tmp_path / "b.txt").symlink_to(tmp_path / "a.txt")  # as in a snapshot of the hub
    assert digest(tmp_path / "b.txt") == digest(tmp_path / "a.txt")
    assert digest(tmp_path / "none") is None


def test_a_search_does_not_go_on_with_other_settings_kept(tmp_path: Path) -> None:
    given = ("--methods", "saul", "--match", "forget_rouge=0.5", "--trials", "2")
    begin(ToyBenchmark(), options(tmp_path, *given))
    ResultsFolder(tmp_path).append({"method": "saul", "seed": 0})
    with pytest.raises(ValueError, match=r"fixed was \[\] and is now \['lr'\]"):
        begin(ToyBenchmark(), options(tmp_path, *given, "--fix", "lr"))
