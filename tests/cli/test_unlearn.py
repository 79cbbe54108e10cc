"""`torch-alm unlearn` from start to end: it forgets, keeps, stops, and goes on."""

import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.cli.conftest import FORGET, RETAIN, Command, report
from torch_alm.cli.goal import Goal
from torch_alm.cli.methods import METHODS, Rates
from torch_alm.cli.models import quiet
from torch_alm.cli.unlearn import Training
from torch_alm.language import encode, read_answers

FAST = ("--lr", "5e-3", "--rho", "1e-2", "--batch-size", 3)


def numbers(path: Path, which: int, name: str) -> dict[str, float]:
    return report(path)["models"][which]["numbers"][name]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_forgets_until_the_level_and_keeps_the_rest(
    command: Command, tmp_path: Path, method: str
) -> None:
    assert command("unlearn", "--method", method, "--alpha", 2, "--epochs", 25, *FAST) == 0
    out = tmp_path / "out"
    before, after = (numbers(out, which, "forget") for which in (0, 1))
    assert before["loss"] < 0.2
    assert before["exact_match"] > 0.8
    assert after["loss"] >= 2
    assert after["exact_match"] == 0
    assert numbers(out, 1, "retain")["loss"] < 1
    trace = report(out)["trace"]
    assert len(trace) == 50
    assert {row["weight"] > 0 for row in trace} == {True, False}, "the gate has to open and close"


def test_the_saved_model_is_the_one_in_the_report(command: Command, tmp_path: Path) -> None:
    assert command("unlearn", "--epochs", 3, *FAST) == 0
    out = tmp_path / "out"
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    model = AutoModelForCausalLM.from_pretrained(out / "model").eval()
    rows = [encode(tokenizer, **row) for row in FORGET]
    readings = read_answers(model, tokenizer, rows)
    told = report(out)["models"][1]["answers"]["forget"]
    assert [r.text for r in readings] == [row["answer"] for row in told]
    assert [r.loss for r in readings] == pytest.approx([row["loss"] for row in told], rel=1e-5)
    assert [row["reference"] for row in told] == [row["answer"] for row in FORGET]


def test_lora_saves_adapters_and_leaves_the_rest_alone(
    command: Command, tmp_path: Path, folder: Path
) -> None:
    assert command("unlearn", "--lora", "--epochs", 4, *FAST) == 0
    saved = tmp_path / "out" / "model"
    assert (saved / "adapter_config.json").is_file()
    assert not (saved / "model.safetensors").exists()
    base = AutoModelForCausalLM.from_pretrained(folder).eval()
    linear = {name for name, layer in base.named_modules() if isinstance(layer, nn.Linear)}
    tokenizer = AutoTokenizer.from_pretrained(saved)
    with quiet():
        loaded = PeftModel.from_pretrained(base, saved).eval()
    names = {name.partition(".lora_") for name, _ in loaded.base_model.model.named_parameters()}
    assert {layer for layer, found, _ in names if found} == linear - {"lm_head"}
    rows = [encode(tokenizer, **row) for row in FORGET]
    told = report(tmp_path / "out")["models"][1]["answers"]["forget"]
    losses = [r.loss for r in read_answers(loaded, tokenizer, rows, texts=False)]
    assert losses == pytest.approx([row["loss"] for row in told], rel=1e-5)
    assert command("evaluate", model=saved, output="again") == 0
    again = report(tmp_path / "again")["models"][0]["numbers"]
    assert again == report(tmp_path / "out")["models"][1]["numbers"]


def test_certify_reaches_the_rate(command: Command, tmp_path: Path) -> None:
    assert command("unlearn", "--certify", 0.9, "--epochs", 20, *FAST) == 0
    after = numbers(tmp_path / "out", 1, "forget")
    assert after["certificate"] >= 0.9
    assert after["exact_match"] <= 0.1
    assert report(tmp_path / "out")["goal"]["kind"] == "rate"
    trace = report(tmp_path / "out")["trace"]
    assert {row["weight"] > 0 for row in trace} == {True, False}, "a rate has to let go, too"


def test_a_holdout_says_what_never_seen_costs(
    command: Command, tmp_path: Path, files: dict[str, Path]
) -> None:
    assert command("unlearn", "--epochs", 1, holdout=files["holdout"]) == 0
    found = report(tmp_path / "out")
    before = found["models"][0]
    assert found["goal"]["alpha"] == pytest.approx(before["numbers"]["holdout"]["loss"], rel=1e-6)
    assert before["membership_auc"] == 1.0


class StopAfter:
    """Press Ctrl-C in the middle of a step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, steps: int, kind: type[Any]) -> None:
        self.left, step = steps, kind.step

        def counted(method: Any, *batches: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
            return step(method, *batches)

        monkeypatch.setattr(kind, "step", counted)


@pytest.mark.parametrize("more", [("--lora",), *(("--method", m) for m in METHODS)])
def test_stopped_and_taken_up_again_is_the_same_run_bit_for_bit(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, more: Any
) -> None:
    options = ("--alpha", 1.5, "--epochs", 4, *FAST, *more)
    assert command("unlearn", *options, output="whole") == 0
    kind = METHODS[more[1] if len(more) == 2 else "saul"]
    with monkeypatch.context() as patch:
        StopAfter(patch, 5, kind)
        assert command("unlearn", *options, output="parts") == 130
    assert "Stopped after step 5 of 8" in capsys.readouterr().out
    assert not (tmp_path / "parts" / "model").exists()
    torch.manual_seed(123)  # a fresh process has another random state
    assert command("unlearn", *options, output="parts") == 0
    assert "Going on after step 5 of 8" in capsys.readouterr().out
    names = ("model.safetensors", "adapter_model.safetensors")
    saved = next(name for name in names if (tmp_path / "whole" / "model" / name).exists())
    whole, parts = ((tmp_path / run / "model" / saved).read_bytes() for run in ("whole", "parts"))
    assert whole == parts
    assert report(tmp_path / "whole")["trace"] == report(tmp_path / "parts")["trace"]
    assert not (tmp_path / "parts" / "unfinished").exists()


def test_a_killed_run_goes_on_from_what_it_last_wrote_down_bit_for_bit(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    options = ("--alpha", 1.5, "--epochs", 4, *FAST)
    assert command("unlearn", *options, output="whole") == 0
    taken, step = [0], METHODS["saul"].step

    def killed(method: Any, *batches: Any) -> Any:
        taken[0] += 1
        if taken[0] == 6:
            raise SystemError("killed")
        return step(method, *batches)

    minutes = iter((0, 0, 0, 3, 3, 4, 5))  # at the start, after each step, and after a save
    with monkeypatch.context() as patch:
        patch.setattr(METHODS["saul"], "step", killed)
        patch.setattr("torch_alm.cli.training.monotonic", lambda: 60 * next(minutes))
        with pytest.raises(SystemError, match="killed"):
            command("unlearn", *options, "--save-every", 2, output="parts")
    torch.manual_seed(123)
    assert command("unlearn", *options, output="parts") == 0
    assert "Going on after step 3 of 8" in capsys.readouterr().out
    whole, parts = (
        (tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("whole", "parts")
    )
    assert whole == parts
    assert report(tmp_path / "whole")["trace"] == report(tmp_path / "parts")["trace"]


def test_stopped_while_measuring_loses_no_step(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("torch_alm.cli.unlearn.save_model", interrupted)
        assert command("unlearn", "--epochs", 1, *FAST) == 130
    taken: list[int] = []
    monkeypatch.setattr(METHODS["saul"], "step", lambda *_: taken.append(1))
    assert command("unlearn", "--epochs", 1, *FAST) == 0
    assert not taken
    assert "Going on after step 2 of 2" in capsys.readouterr().out


def test_an_unfinished_run_of_other_settings_is_not_continued(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with monkeypatch.context() as patch:
        StopAfter(patch, 1, METHODS["saul"])
        assert command("unlearn", "--epochs", 1, *FAST) == 130
    state = (tmp_path / "out" / "unfinished" / "state.pt").read_bytes()
    assert command("unlearn", "--epochs", 2, *FAST) == 2
    assert "epochs was 1 and is now 2" in capsys.readouterr().err
    assert (tmp_path / "out" / "unfinished" / "state.pt").read_bytes() == state
    assert command("unlearn", "--epochs", 2, *FAST, "--force") == 0
    assert len(report(tmp_path / "out")["trace"]) == 4


def test_rows_that_changed_are_other_settings(
    command: Command, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with monkeypatch.context() as patch:
        StopAfter(patch, 1, METHODS["saul"])
        assert command("unlearn", "--epochs", 1, *FAST) == 130
    files["retain"].write_text(files["retain"].read_text().replace("B1", "B9"))
    assert command("unlearn", "--epochs", 1, *FAST) == 2
    assert "retain was" in capsys.readouterr().err


def test_every_epoch_sees_each_forget_row_once_in_a_seeded_order(
    model: Any, tokenizer: Any
) -> None:
    rows = {n: [encode(tokenizer, **r) for r in s] for n, s in (("f", FORGET), ("r", RETAIN))}
    method = METHODS["dual"](model, Goal("loss", 1.0, ""), Rates(1e-3, 0.0, 0.1, 0.0), nullcontext)
    orders = [
        Training(method, rows["f"], rows["r"], 0, epochs=2, batch_size=4, seed=seed).order
        for seed in (0, 0, 1)
    ]
    assert orders[0] == orders[1] != orders[2]
    assert [len(forget) for _, forget in orders[0]] == [4, 2, 4, 2]
    for epoch in (orders[0][:2], orders[0][2:]):
        assert sorted(i for _, forget in epoch for i in forget) == list(range(6))
