"""Several processes are one run: the same rows in a step, the same weights, verdict and files."""

import contextlib
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState, GradientState
from safetensors.torch import load
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.command.conftest import FORGET, RETAIN, command_in, lay, report
from tests.command.test_unlearn import weights
from tests.core.distributed.ranks import Ranks
from tests.unlearning.test_verbs import small
from torch_alm.command import main, output
from torch_alm.integrations.transformers import SAULTrainer
from torch_alm.unlearning import Refusal, asking, unlearn
from torch_alm.unlearning.model import check_given
from torch_alm.unlearning.ranks import join_group

SHORT = {"steps": 6, "batch_size": 5, "alpha": 3.0, "seed": 1, "quiet": True}
KINDS: dict[str, dict[str, Any]] = {
    "adapters": {"lora": True},
    "SAUL, and batches that are added up, and a weight that no pass takes": {
        "method": "saul",
        "accumulate": 2,
        "has_unused": True,
    },
}


def launch(rank: int, world: int, **more: str) -> None:
    """Set what a launcher sets, beside the process group that is there already."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    given = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="1", ACCELERATE_USE_CPU="true")
    os.environ.update(given | more)


def train_counted(rank: int, *given: Any) -> tuple[Any, Any, list[int]]:
    """Also how many rows were asked to generate, by this rank."""
    asked, read = list[int](), asking.read_answers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking, "read_answers", lambda model, words, rows, **more: (
            asked.append(len(rows) * (more["max_new_tokens"] > 0)),
            read(model, words, rows, **more),
        )[1])  # fmt: skip
        return *train(rank, *given), sum(asked)


def train(rank: int, folder: str, how: dict[str, Any], world: int = 2) -> tuple[Any, Any]:
    """Weights in float64 and the report; `how` may have the rows of each rank, or no launcher."""
    how = {"rows": [FORGET] * world, "is_launched": world > 1, **how}
    forget, tokenizer = how.pop("rows")[rank], AutoTokenizer.from_pretrained(folder)
    if port := how.pop("port", ""):
        dist.destroy_process_group()
    if how.pop("is_launched"):
        launch(rank, world, MASTER_PORT=port or "1")
    model: Any = AutoModelForCausalLM.from_pretrained(folder).double()
    if how.pop("is_recurrent", False):
        model = small("Mamba", "ForCausalLM", len(tokenizer))
    if how.pop("has_unused", False):
        model.unused = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    made = unlearn(model, tokenizer, forget, RETAIN, **SHORT | how)
    return {k: v.clone() for k, v in made.model.state_dict().items()}, made.content


@pytest.fixture
def four(forks: None, tmp_path: Path) -> Any:
    found = Ranks(tmp_path, world=4)
    yield found
    found.stop()


def assert_one_run(found: list[Any], alone: tuple[Any, Any]) -> None:
    (theta, content), *others = found
    assert all(content == other for _, other in others)
    for each in (theta, *(other for other, _ in others)):
        torch.testing.assert_close(each, alone[0], rtol=0, atol=1e-10)
    assert content["verdict"] == alone[1]["verdict"]
    for one, other in zip(content["models"], alone[1]["models"], strict=True):
        assert one["numbers"]["forget"] == pytest.approx(other["numbers"]["forget"], abs=1e-10)
        for kind, rows in one["answers"].items():
            words = [(row["answer"], row["tokens"]) for row in rows]
            assert words == [(row["answer"], row["tokens"]) for row in other["answers"][kind]]
    numbers = [[step["forget"] for step in told["trace"]] for told in (content, alone[1])]
    assert numbers[0] == pytest.approx(numbers[1], abs=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_end_as_one(ranks: Ranks, folder: Path, kind: str) -> None:
    """Batches of five rows and of one, of which a rank has none."""
    alone = train(0, str(folder), KINDS[kind], world=1)
    assert_one_run(ranks(train, str(folder), KINDS[kind], timeout=120.0), alone)


def test_four_ranks_end_as_one(four: Ranks, folder: Path) -> None:
    """Also to the last token of an answer, though each asks a fourth of the rows."""
    *alone, every = train_counted(0, str(folder), {}, 1)
    found = four(train_counted, str(folder), {}, 4, timeout=120.0)
    assert_one_run([(theta, content) for theta, content, _ in found], (alone[0], alone[1]))
    counts = [count for *_, count in found]
    assert sum(counts) == every and max(counts) - min(counts) <= len(found[0][1]["models"]) * 12


def commanded(
    rank: int, place: str, model: str, files: Any, words: Any, stop: int, world: int = 2
) -> Any:
    """The code of a command, what it printed, and which files it opened to write."""
    launch(rank, world)
    step, left, written = SAULTrainer.training_step, [stop], list[str]()

    def stopped(trainer: Any, *given: Any) -> Any:
        left[0] -= 1
        if rank == 1 and left[0] == 0:  # as a user would stop one of them
            signal.raise_signal(signal.SIGTERM)
        return step(trainer, *given)

    sys.addaudithook(lambda event, what: note(written, place, event, what))
    SAULTrainer.training_step = stopped
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            code = command_in(Path(place), Path(model), files)("unlearn", *words)
    finally:
        SAULTrainer.training_step = step
    return code, told.getvalue(), written


def note(written: list[str], place: str, event: str, what: Any) -> None:
    """Note a file that is opened to be written."""
    if event == "open" and str(what[0]).startswith(place) and "w" in str(what[1]):
        written.append(str(what[0]))


def test_the_command_stops_on_both_writes_on_one_and_goes_on_alone_and_on_four(
    ranks: Ranks, four: Ranks, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch_alm.unlearning.report.plot_losses", lambda *_: None)
    words = ("--steps", 14, "--batch-size", 4, "--alpha", 2)
    place = str(tmp_path), str(folder), (files := lay(tmp_path))
    first, second = ranks(commanded, *place, words, 6, timeout=120.0)
    assert (first[0], second[0]) == (130, 130) and "Stopped after step 6 of 14" in first[1]
    assert not second[1].strip()
    assert not [path for path in second[2] if "rng_state" not in path]
    shutil.copytree(tmp_path / "out", tmp_path / "more" / "out")
    more = str(tmp_path / "more"), *place[1:]
    assert [code for code, *_ in four(commanded, *more, words, 0, 4, timeout=120.0)] == [3] * 4
    alone = command_in(tmp_path, folder, files)
    assert alone("unlearn", *words) == alone("unlearn", *words, output="whole") == 3
    whole, end = report(tmp_path / "whole"), load(weights(tmp_path / "whole"))
    for each in (tmp_path / "out", tmp_path / "more" / "out"):
        assert len(report(each)["trace"]) == 14
        for one, other in zip(report(each)["trace"], whole["trace"], strict=True):
            assert one == pytest.approx(other, rel=1e-3, abs=1e-5)
        torch.testing.assert_close(load(weights(each)), end, rtol=0, atol=1e-4)
    again = ranks(commanded, *place, (*words[2:], "--steps", 16), 0, timeout=120.0)
    assert [code for code, *_ in again] == [3, 3] and not again[1][1].strip()
    assert len(report(tmp_path / "out")["trace"]) == 16


def refused(rank: int, folder: str, how: dict[str, Any]) -> str:
    launch(rank, 2, ACCELERATE_USE_FSDP=str(how.pop("sharded", False)))
    if not how.get("is_launched", True):
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            del os.environ[name]
    try:
        train(rank, folder, how)
    except Refusal as refusal:
        return str(refusal)
    return ""


@pytest.mark.parametrize(("how", "told"), [
    ({"batch_size": 1}, "2 processes share a batch of 1 rows, so that some would have none"),
    ({"rows": [FORGET, FORGET[1:]]}, "the processes differ in forget; each would pull its own way"),
    ({"rows": [FORGET, FORGET[1:]], "port": ""}, "the processes differ in forget"),
    ({"is_recurrent": True, "lora": True}, "peft has no adapters for all layers of Mamba"),
    ({"sharded": True}, "were started for FSDP, and here each holds the whole model"),
    ({"is_launched": False}, "the process group has 2 processes, and the Trainer sees 1 of them"),
    ({"rows": [FORGET, [*FORGET[1:], {"question": "x", "answer": ""}]]}, "forget row 6"),
])  # fmt: skip
def test_what_ranks_cannot_do_is_refused_on_all(
    ranks: Ranks, folder: Path, how: Any, told: str
) -> None:
    how = {**how, "port": free_port()} if "port" in how else how  # without a group before
    assert all(told in each for each in ranks(refused, str(folder), how, timeout=120.0))


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return str(found.getsockname()[1])


def test_a_process_without_a_card_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(Refusal, match="2 processes were started here, and there are 1 GPUs"):
        join_group("auto")


def test_each_process_takes_the_card_of_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    with FakeTensorMode():
        cards = [torch.empty(1, device=f"cuda:{i}") for i in range(2)]
        first, second = (torch.nn.ParameterList([each]) for each in cards)
        check_given(second)
        with pytest.raises(Refusal, match=r"the model is on cuda:0; .*`model.to\(1\)`"):
            check_given(first)


def ended(rank: int, path: str) -> bool:
    """Whether the first process had its say when the command of this one was over."""
    launch(rank, 2)
    if rank == 0:

        def complain(text: str) -> None:
            time.sleep(0.5)
            Path(path).touch()

        output.complain = complain
    assert main(["unlearn", "--nonsense"]) == 2
    return Path(path).exists()


def test_no_process_ends_before_the_first_has_spoken(ranks: Ranks, tmp_path: Path) -> None:
    """Else its launcher would end the first, too."""
    assert ranks(ended, str(tmp_path / "said")) == [True, True]


def test_accelerate_launches_the_command(folder: Path, tmp_path: Path) -> None:
    files = [word for k, v in lay(tmp_path).items() for word in (f"--{k}", str(v))]
    how = ["--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no"]
    how += ["--dynamo_backend=no", f"--main_process_port={free_port()}", "-m", "torch_alm"]
    words = ["unlearn", *files[:4], "--model", str(folder), "--output", str(tmp_path / "out")]
    short = ["--device=cpu", "--steps=2", "--batch-size=4", "--alpha=2"]
    start = [sys.executable, "-m", "accelerate.commands.launch", *how]
    done = subprocess.run([*start, *words, *short], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("exitcode  : 3 ") == 2
    assert "find_unused_parameters" not in done.stderr
    assert done.stdout.count("The goal is not met") == done.stdout.count("Goal: ") == 1
    assert len(report(tmp_path / "out")["trace"]) == 2
