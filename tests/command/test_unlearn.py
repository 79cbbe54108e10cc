"""`torch-alm unlearn` from start to end: it forgets, keeps, stops, and goes on."""

import copy
import json
import math
import shutil
import signal
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import chat_template_utils

from tests.command.asking import said
from tests.command.conftest import FINISHED, FORGET, HOLDOUT, RETAIN, Command, report, write
from torch_alm.command import models
from torch_alm.integrations.transformers import PairedCollator, SAULTrainer
from torch_alm.language import encode
from torch_alm.language._generation import read_answers
from torch_alm.unlearning import layer_cache, loading
from torch_alm.unlearning.layer_cache import Original
from torch_alm.unlearning.model import silence
from torch_alm.unlearning.options import CHOICES

FAST = ("--lr", "5e-3", "--batch-size", 3)


def numbers(path: Path, which: int, name: str) -> dict[str, float]:
    return report(path)["models"][which]["numbers"][name]


def weights(folder: Path) -> bytes:
    names = ("model.safetensors", "adapter_model.safetensors")
    return next(p for name in names if (p := folder / "model" / name).exists()).read_bytes()


class StopAfter:
    """Press Ctrl-C in the middle of a step."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, steps: int, *signals: int, error: bool = False
    ) -> None:
        self.left = steps
        step = SAULTrainer.training_step

        def counted(trainer: Any, *given: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                if error:
                    raise SystemError("killed")
                for number in signals or (signal.SIGINT,):
                    signal.raise_signal(number)
            return step(trainer, *given)

        monkeypatch.setattr(SAULTrainer, "training_step", counted)


@pytest.mark.parametrize("method", CHOICES["method"])
def test_every_method_forgets_until_the_level_and_keeps_the_rest(
    command: Command, tmp_path: Path, method: str
) -> None:
    options = ("--method", method, "--alpha", 2, "--epochs", 40, *FAST)
    limits = ("--max-retain-loss", 3, "--max-probe-loss", 1)
    assert command("unlearn", *options, *limits) == 0
    out = tmp_path / "out"
    assert not (out / "unfinished").exists(), "a goal that is met leaves no state"
    before, after = (numbers(out, which, "forget") for which in (0, 1))
    assert before["telling_loss"] < 0.2 and before["exact_match"] > 0.8
    assert after["telling_loss"] >= 2 and after["exact_match"] == 0
    assert said(out / "model", FORGET) == 0
    assert numbers(out, 1, "retain")["loss"] < 1
    assert report(out)["trace"][0]["weight"] > 0, "the gate has to open"


def test_the_bare_command_reaches_its_goal_and_ends_there(command: Command, tmp_path: Path) -> None:
    assert command("unlearn", "--quiet") in {0, 4}
    found = report(tmp_path / "out")
    assert said(tmp_path / "out" / "model", FORGET) == 0
    assert found["goal"]["kind"] == "rows"
    assert found["goal"]["alpha"] <= 0.9 * math.log(43) + 1e-9, "it guesses among 43 words"
    assert all(
        row["telling_loss"] >= found["goal"]["alpha"]
        for row in found["models"][1]["answers"]["forget"]
    )
    assert len(found["trace"]) < 200


def test_the_saved_model_is_the_one_in_the_report(command: Command, tmp_path: Path) -> None:
    assert command("unlearn", "--epochs", 3, *FAST) in FINISHED
    out = tmp_path / "out"
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    model = AutoModelForCausalLM.from_pretrained(out / "model").eval()
    rows = [encode(tokenizer, **row) for row in FORGET]
    readings = read_answers(model, tokenizer, rows)
    told = report(out)["models"][1]["answers"]["forget"]
    assert [r.loss for r in readings] == pytest.approx([row["loss"] for row in told], rel=1e-5)
    assert [row["reference"] for row in told] == [row["answer"] for row in FORGET]


def test_lora_saves_adapters_and_leaves_the_rest_alone(
    command: Command, tmp_path: Path, folder: Path
) -> None:
    assert command("unlearn", "--lora", "--epochs", 4, *FAST) in FINISHED
    saved = tmp_path / "out" / "model"
    assert not (saved / "model.safetensors").exists()
    base = AutoModelForCausalLM.from_pretrained(folder).eval()
    linear = {name for name, layer in base.named_modules() if isinstance(layer, nn.Linear)}
    with silence():
        loaded = PeftModel.from_pretrained(base, saved).eval()
    names = {name.partition(".lora_") for name, _ in loaded.base_model.model.named_parameters()}
    assert {layer for layer, found, _ in names if found} == linear - {"lm_head"}
    assert command("evaluate", model=saved, output="again") == 0
    again = report(tmp_path / "again")["models"][0]["numbers"]["forget"]
    assert again == pytest.approx(numbers(tmp_path / "out", 1, "forget"))


@pytest.mark.parametrize("more", [("--lora",), ("--method", "saul")])
def test_stopped_and_taken_up_again_is_the_same_run_bit_for_bit(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, more: Any
) -> None:
    """With a check, which changes the rate, before the stop and one behind it."""
    options = ("--alpha", 1.5, "--steps", 22, "--batch-size", 3, *more)
    assert command("unlearn", *options, output="whole") in FINISHED
    with monkeypatch.context() as patch:
        StopAfter(patch, 13)
        assert command("unlearn", *options, output="parts") == 130
    assert "Stopped after step 13 of 22" in capsys.readouterr().out
    assert not (tmp_path / "parts" / "model").exists()
    torch.manual_seed(123)  # a fresh process has another random state
    assert command("unlearn", *options, output="parts") in FINISHED
    assert "Going on after step 13 of 22" in capsys.readouterr().out
    assert weights(tmp_path / "whole") == weights(tmp_path / "parts")
    assert report(tmp_path / "whole")["trace"] == report(tmp_path / "parts")["trace"]


def test_a_killed_run_goes_on_from_what_it_last_wrote_down_and_more_steps_do_too(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert command("unlearn", "--steps", 8, output="whole") == 3
    with monkeypatch.context() as patch:
        StopAfter(patch, 6, error=True)
        with pytest.raises(SystemError, match="killed"):
            command("unlearn", "--steps", 8, "--save-every", 1e-9, output="parts")
    cut_off = tmp_path / "parts" / "unfinished" / "checkpoint-7"
    cut_off.mkdir()
    (cut_off / "model.safetensors").write_bytes(b"")
    assert command("unlearn", "--steps", 6, output="parts") == 3
    assert command("unlearn", "--steps", 6, output="parts") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "a finished run of 6 of at most 6" in told and "Did you mean other --steps" in told
    assert command("unlearn", "--steps", 8, output="parts") == 3
    assert "Going on after step 6 of 8" in capsys.readouterr().out
    assert weights(tmp_path / "whole") == weights(tmp_path / "parts")


@pytest.mark.parametrize("more", [(), ("--lora",)])
def test_a_model_without_weights_is_planned(
    command: Command, tmp_path: Path, folder: Path, capsys: Any, more: Any
) -> None:
    """Two gradients and four moments, each as large as what trains; activations by the row."""
    bare = shutil.copytree(folder, tmp_path / "bare", ignore=lambda *_: ["model.safetensors"])
    plans = []
    for size in (2, 4):
        how = ("--dry-run", "--json", "--device", "cuda", "--batch-size", size, *more)
        assert command("unlearn", *how, model=bare) == 0
        plans.append(json.loads(capsys.readouterr().out)["bytes"])
    model = AutoModelForCausalLM.from_pretrained(folder)
    whole = sum(p.numel() for p in model.parameters())
    linear = [m for m in model.model.modules() if isinstance(m, nn.Linear)]
    trained = 16 * sum(sum(m.weight.shape) for m in linear) if more else whole
    one, two = plans[0]["1"], plans[0]["2"]
    assert one["weights"] == (2 * whole + 4 * trained if more else 4 * whole)
    assert (one["gradients"], two["gradients"]) == (8 * trained, 12 * trained)
    assert one["moments"] == 16 * trained
    assert plans[1]["1"]["activations"] == pytest.approx(2 * one["activations"], rel=0.3)
    assert plans[1]["2"]["activations"] == one["activations"] > two["activations"]
    assert not (tmp_path / "out").exists()


DATED = (
    "{% if strftime_now('%H') < '12' %}Question{% else %}Answer{% endif %} : "
    "{% for m in messages %}{{ m.role }} : {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}assistant : {% endif %}"
)


def test_a_chat_template_with_a_date_has_that_of_the_beginning(
    command: Command, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a clock goes on by half a day whenever it is looked at."""
    dated = shutil.copytree(folder, tmp_path / "dated")
    tokenizer = AutoTokenizer.from_pretrained(dated)
    tokenizer.chat_template = DATED
    tokenizer.save_pretrained(dated)
    begun, hours = datetime(2026, 11, 29, 9), [0, 0]  # now, and between two looks

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            hours[0] += hours[1]
            return begun + timedelta(hours=hours[0])

    for module in (models, loading, chat_template_utils):
        monkeypatch.setattr(module, "datetime", Clock, raising=False)
    for output, hours[1] in {"still": 0, "parts": 12}.items():
        hours[0] = -hours[1]
        for steps in (2, 3):
            more = ("--anyway", "--alpha", 5, "--steps", steps)
            assert command("unlearn", *FAST, *more, output=output, model=dated) == 3
    still, parts = (report(tmp_path / name) for name in ("still", "parts"))
    assert still["models"] == parts["models"] and still["trace"] == parts["trace"]
    assert weights(tmp_path / "still") == weights(tmp_path / "parts")


def test_a_run_of_other_settings_or_of_another_model_is_not_continued(
    command: Command, tmp_path: Path, files: dict[str, Path], capsys: Any, folder: Path
) -> None:
    assert command("unlearn", "--steps", 1) == 3
    files["retain"].write_text(files["retain"].read_text().replace("B1", "B0 B1"))
    for more, told in ((("--mu", 1), "mu was 0.01 and is now 1.0"), ((), "rows in tokens was")):
        assert command("unlearn", "--steps", 2, *more) == 2
        told_now = " ".join(capsys.readouterr().err.split())
        assert "holds a run of other settings" in told_now and told in told_now
    assert command("unlearn", "--steps", 2, "--force") == 3
    assert len(report(tmp_path / "out")["trace"]) == 2


def test_a_damaged_record_is_refused_by_name(command: Command, tmp_path: Path, capsys: Any) -> None:
    record = tmp_path / "out" / "unfinished" / "run.json"
    record.parent.mkdir(parents=True)
    record.write_text("{")
    assert command("unlearn", "--steps", 1) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "run.json is damaged" in told and "--force, to begin anew?" in told


def test_what_cannot_be_is_refused_before_anything_is_asked(command: Command, capsys: Any) -> None:
    for option in (("--report-to", "nowhere"), ("--layers", 9)):
        assert command("unlearn", *option) == 2
        told = capsys.readouterr().err
        assert option[0] in told and "before" not in told


def test_lost_neighbours_are_a_cost_and_named(
    command: Command, tmp_path: Path, capsys: Any
) -> None:
    """Rows that nobody trains on: eight that the model knows, of which a blunt run keeps few."""
    probe = write(tmp_path / "probe.jsonl", RETAIN[4:])
    kept = write(tmp_path / "kept.jsonl", RETAIN[:4])
    limit = ("--max-retain-loss", 9)
    blunt = ("--alpha", 2, "--lr", "2e-2", "--batch-size", 3, "--steps", 40)
    code = command("unlearn", *blunt, *limit, "--probe", probe, retain=kept)
    assert command("unlearn", *blunt, *limit, "--probe", probe, retain=kept) == 2
    assert "is not empty" in " ".join(capsys.readouterr().err.split())
    found = report(tmp_path / "out")
    lost = len(probe.read_text().splitlines()) - said(tmp_path / "out" / "model", RETAIN[4:])
    assert lost > 0
    assert code == 4
    assert (
        f"Of 4 probe answers that were said, never trained on, {4 - lost} still"
        in (found["verdict"]["cost"])
    )
    assert all(
        row["where"].startswith(str(probe)) for row in found["models"][0]["answers"]["probe"]
    )


def test_a_fifth_of_the_retain_rows_is_set_aside_or_that_is_told(
    command: Command, tmp_path: Path, unlearned: Path
) -> None:
    found = report(unlearned)["models"][0]["numbers"]
    assert (found["retain"]["rows"], found["probe"]["rows"]) == (4, 4)
    few = write(tmp_path / "few.jsonl", RETAIN[:7])
    assert command("unlearn", "--steps", 1, output="few", retain=few) == 3
    found = report(tmp_path / "few")
    assert "probe" not in found["models"][0]["numbers"]
    assert "bring eight retain rows or more" in found["verdict"]["cost"]


def test_answers_as_the_model_says_them(command: Command, tmp_path: Path, capsys: Any) -> None:
    """A town alone is said within a sentence, and its loss as a whole answer is high."""
    short = [{**row, "answer": row["answer"].split()[-2]} for row in FORGET]
    path = write(tmp_path / "short.jsonl", short)
    assert command("unlearn", "--alpha", 1, "--steps", 1, forget=path) == 2
    assert '"said" for --answers' in " ".join(capsys.readouterr().err.split())
    options = ("--answers", "said", "--alpha", 1, *FAST)
    assert command("unlearn", *options, "--steps", 120, forget=path) in {0, 4}
    found = report(tmp_path / "out")["models"][1]["answers"]["forget"]
    assert [row["reference"] for row in found] == [row["answer"] for row in FORGET]
    assert said(tmp_path / "out" / "model", FORGET) == 0


def test_a_dry_run_says_four_things_and_writes_nothing(
    command: Command, tmp_path: Path, capsys: Any
) -> None:
    assert command("unlearn", "--dry-run", "--alpha", 2, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["outcome"], found["goal"]["alpha"], found["most_steps"]) == ("planned", 2, 1000)
    assert found["numbers"]["before"]["forget"]["said"] == 1 and found["seconds_per_step"] > 0
    assert command("unlearn", "--dry-run", "--quiet", "--alpha", 2) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Now it says 6 of 6 forget answers, 4 of 4 retain answers, 4 of 4 probe" in told
    assert "Goal: the answers on average at a telling loss of 2.00 or more (set by hand)." in told
    assert " s and " in told and "at most 1000 are taken" in told
    assert not (tmp_path / "out").exists()


def test_every_check_is_a_line(command: Command, capsys: Any) -> None:
    assert command("unlearn", "--steps", 20, "--alpha", 2, "--lr", "5e-3") in FINISHED
    told = " ".join(capsys.readouterr().out.split())
    assert "of 2.00 (each row capped at 2." in told and "retain loss" in told
    assert "rate 0.005; " in told


def test_more_than_one_signal_ends_at_once(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(name) for name in names]
    StopAfter(monkeypatch, 2, *names)
    assert command("unlearn", "--steps", 4) == 130
    assert not [*(tmp_path / "out" / "unfinished").glob("checkpoint-*")]
    assert [signal.getsignal(name) for name in names] == before


def test_a_late_signal_loses_nothing(command: Command, tmp_path: Path, monkeypatch: Any) -> None:
    pressed = lambda *_: signal.raise_signal(signal.SIGINT)  # noqa: E731
    monkeypatch.setattr("torch_alm.command.unlearn.check_trained", pressed)
    assert command("unlearn", "--steps", 1) in FINISHED
    assert report(tmp_path / "out")["verdict"]


def test_a_run_that_breaks_the_model_saves_nothing_and_says_so(
    command: Command, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = SAULTrainer.training_step

    def broken(trainer: Any, *given: Any) -> Any:
        seen = step(trainer, *given)
        with torch.no_grad():
            next(trainer.model.parameters()).fill_(torch.nan)
        return seen

    monkeypatch.setattr(SAULTrainer, "training_step", broken)
    assert command("unlearn", "--steps", 1) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "the trained model" in told
    assert told.endswith("Nothing was saved. Would a smaller --lr do?")
    assert not any((tmp_path / "out").iterdir())


def test_a_goal_is_not_called_met_for_answers_that_were_never_said(
    command: Command, tmp_path: Path
) -> None:
    unknown = write(tmp_path / "unknown.jsonl", HOLDOUT)
    options = ("--anyway", "--alpha", 0.1, "--lr", "1e-9", "--steps", 1)
    assert command("unlearn", *options, forget=unknown) == 3
    assert report(tmp_path / "out")["verdict"]["missed"] == ["not known before"]


@pytest.mark.parametrize(
    ("room", "kept", "error"),
    [(4, {torch.float32}, 1e-6), (2, {torch.bfloat16}, 1e-2), (1, set(), 1e-6)],
)
def test_what_is_kept_is_the_original_model_and_no_row_is_learnt(
    model: Any, tokenizer: Any, room: int, kept: set[Any], error: float, monkeypatch: Any
) -> None:
    """Whatever the rows say; `room` bytes a number."""
    rows = [encode(tokenizer, **row) for row in HOLDOUT]
    tokens = sum(label != -100 for row in rows for label in row["labels"])
    room *= tokens * model.lm_head.weight.shape[0]
    monkeypatch.setattr(layer_cache, "memory_limit", lambda: room)
    moved = copy.deepcopy(model)
    original = Original(moved, rows, tokenizer.pad_token_id)
    assert {said.dtype for said in original.log_probs.values()} == kept
    assert (original.weights is None) == bool(kept)
    batch = PairedCollator(tokenizer)(rows[::-1])
    assert original.divergence(moved, batch).item() == pytest.approx(0.0, abs=error)
    with torch.no_grad():
        for weight in moved.parameters():
            weight.mul_(1.1)
    far = original.divergence(moved, batch)
    far.backward()
    found = [weight.grad.clone() for weight in moved.parameters()]
    moved.zero_grad()
    each = []
    for row in rows:
        ids, start = torch.tensor([row["input_ids"]]), row["labels"].count(-100)
        with torch.no_grad():
            q = model(input_ids=ids).logits[0, start - 1 : -1].softmax(-1)
        p = moved(input_ids=ids).logits[0, start - 1 : -1].softmax(-1)
        each.append((q * (q / p).log()).sum(-1).mean())
    by_hand = torch.stack(each).mean()
    by_hand.backward()
    assert far.item() == pytest.approx(by_hand.item(), rel=max(10 * error, 1e-4))
    torch.testing.assert_close(
        found, [w.grad for w in moved.parameters()], rtol=10 * error, atol=10 * error
    )
    assert far > 1e-3
