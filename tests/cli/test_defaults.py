"""The bare command, on models of two sizes that learnt their rows at rates far apart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.cli.asking import said
from tests.cli.conftest import FINISHED, HOLDOUT, TOWNS, Command, report, write
from tests.cli.test_unlearn import StopAfter
from torch_alm.cli.methods import METHODS
from torch_alm.language import collate, encode
from torch_alm.measures import token_nll

SIZES = {"small": (16, 1, 1e-2), "large": (80, 1, 2e-3)}  # width, layers, rate of learning
# Towns in an order of their own: nothing of an answer can be guessed from another's
FORGET, RETAIN = (
    [
        {"question": f"Where does {who}{i} live ?",
         "answer": " ".join(TOWNS[(i * k + k + shift) % 10] for k in (1, 3, 7))}
        for i in range(count)
    ]
    for who, count, shift in (("A", 6, 0), ("B", 8, 5))
)  # fmt: skip
Teach = Callable[[str], Path]


@pytest.fixture(scope="module")
def teach(tokenizer: Any, tmp_path_factory: Any) -> Teach:
    """A model without dropout that knows all rows by heart."""

    def taught(size: str) -> Path:
        width, layers, rate = SIZES[size]
        torch.manual_seed(7)
        shape = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": layers}
        more = {"num_attention_heads": 2, "max_position_embeddings": 64, "eos_token_id": 2}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape, **more))
        batch = collate([encode(tokenizer, **row) for row in (*FORGET, *RETAIN)], 0)
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        for _ in range(120):
            token_nll(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        path = tmp_path_factory.mktemp(size)
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
        return path

    return taught


@pytest.mark.parametrize("size", SIZES)
def test_with_its_defaults_the_command_reaches_its_goal_and_ends_there(
    command: Command, tmp_path: Path, teach: Teach, size: str
) -> None:
    model = teach(size)
    assert said(model, FORGET) == len(FORGET)
    files = {"forget": FORGET, "retain": RETAIN}
    paths = {name: write(tmp_path / f"own-{name}.jsonl", rows) for name, rows in files.items()}
    assert command("unlearn", model=model, **paths) in {0, 4}
    out = tmp_path / "out"
    assert said(out / "model", FORGET) == 0
    found = report(out)
    assert len(found["trace"]) < 1000
    assert found["notes"][-1].startswith(f"Ended after {len(found['trace'])} of at most 1000 steps")
    rates = [row["lr"] for row in found["trace"]]
    assert rates[0] == 1e-5 < rates[-1]
    assert {rates[i] for i in range(10)} == {1e-5}


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


def test_more_steps_go_on_with_a_run_that_is_through(
    command: Command, tmp_path: Path, capsys: Any
) -> None:
    assert command("unlearn", "--steps", 14, output="whole") == 3
    assert command("unlearn", "--steps", 7, output="parts") == 3
    short = weights(tmp_path / "parts")
    assert command("unlearn", "--steps", 7, output="parts") == 2
    assert "a --steps above 7" in " ".join(capsys.readouterr().err.split())
    assert weights(tmp_path / "parts") == short
    torch.manual_seed(5)
    assert command("unlearn", "--steps", 14, output="parts") == 3
    assert "Going on after step 7 of 14" in capsys.readouterr().out
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    assert report(tmp_path / "parts")["trace"] == report(tmp_path / "whole")["trace"]


def test_a_run_that_met_its_goal_leaves_no_state(command: Command, tmp_path: Path) -> None:
    fast = ("--lr", "5e-3", "--alpha", 2, "--batch-size", 3)
    code = command("unlearn", *fast, "--method", "dual", "--max-retain-loss", 3)
    assert code == 0
    assert not (tmp_path / "out" / "unfinished").exists()
    assert {row["lr"] for row in report(tmp_path / "out")["trace"]} == {5e-3}


def test_a_rate_that_was_found_is_found_again_bit_for_bit_after_a_stop(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--method", "dual", "--steps", 45)
    assert command("unlearn", *options, output="whole") in FINISHED
    with monkeypatch.context() as patch:
        StopAfter(patch, 30, METHODS["dual"])  # a check has just changed the rate
        assert command("unlearn", *options, output="parts") == 130
    torch.manual_seed(123)
    assert command("unlearn", *options, output="parts") in FINISHED
    assert len({row["lr"] for row in report(tmp_path / "whole")["trace"]}) > 2
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")


def test_a_run_whose_retain_side_cannot_keep_up_says_so(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch_alm.cli.pacing.PATIENCE", 2)
    assert command("unlearn", "--method", "dual", "--max-retain-loss", 1e-6) in {3, 4}
    told = report(tmp_path / "out")["notes"][-1]
    assert told.startswith("Gave up after ")
    assert "the retain side does not keep up" in told


def test_another_limit_of_the_retain_loss_holds_from_where_a_run_stands(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Neither limit is let through by the other: it rules the rate, and the verdict."""
    monkeypatch.setattr("torch_alm.cli.pacing.PATIENCE", 2)
    options = ("--method", "dual", "--alpha", 2, "--max-retain-loss")
    assert command("unlearn", *options, 1e-6) == 3
    steps = len(report(tmp_path / "out")["trace"])
    monkeypatch.undo()
    assert command("unlearn", *options, 1e-6) == 2
    assert "another --max-retain-loss" in " ".join(capsys.readouterr().err.split())
    assert command("unlearn", *options, 5) == 0
    assert f"Going on after step {steps} of 1000" in capsys.readouterr().out
    found = report(tmp_path / "out")
    assert len(found["trace"]) > steps
    assert found["settings"]["max_retain_loss"] == 5
    assert found["notes"][-1].endswith("the goal is met and has held.")


def test_a_goal_is_not_called_met_for_answers_that_were_never_said(
    command: Command, tmp_path: Path
) -> None:
    unknown = write(tmp_path / "unknown.jsonl", HOLDOUT)
    assert command("unlearn", "--anyway", "--alpha", 0.1, "--lr", "1e-9", forget=unknown) == 3
    found = report(tmp_path / "out")
    assert found["verdict"]["missed"] == ["not known before"]
    assert "the level is reached and has held, by a model that did not say" in found["notes"][-1]
