"""`torch-alm unlearn` from start to end: it forgets, keeps, stops, and goes on."""

import copy
import hashlib
import platform
import re
import signal
import warnings
from contextlib import nullcontext
from importlib.metadata import version
from itertools import groupby
from logging import CRITICAL, WARNING, getLogger
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from tests.cli.conftest import FINISHED, FORGET, HOLDOUT, RETAIN, Command, report
from torch_alm.cli import unlearn as unlearn_module
from torch_alm.cli.closing import content_of
from torch_alm.cli.goal import Goal, goal_of
from torch_alm.cli.methods import METHODS, Rates
from torch_alm.cli.options import parser
from torch_alm.cli.places import place
from torch_alm.cli.settings import settings_of
from torch_alm.cli.training import Training, postfix
from torch_alm.cli.unfinished import Unfinished
from torch_alm.language import encode, pairs, read_answers
from torch_alm.unlearning.models import load_model, quiet
from torch_alm.unlearning.refusal import Refusal

SIZE = ("--lr", "5e-3", "--batch-size", 3)
FAST = ("--rho", "1e-2", *SIZE)


def numbers(path: Path, which: int, name: str) -> dict[str, float]:
    return report(path)["models"][which]["numbers"][name]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_forgets_until_the_level_and_keeps_the_rest(
    command: Command, tmp_path: Path, method: str
) -> None:
    # at 2 nats SAUL may leave half of the words of these six answers; npo does not reach 3
    alpha, options = (3, FAST) if method == "saul" else (2, SIZE)
    code = command("unlearn", "--method", method, "--alpha", alpha, "--epochs", 25, *options)
    assert code in {0, 4}, "forgotten, at whatever cost"
    out = tmp_path / "out"
    before, after = (numbers(out, which, "forget") for which in (0, 1))
    assert before["loss"] < 0.2
    assert before["exact_match"] > 0.8
    assert after["loss"] >= alpha
    assert after["exact_match"] == 0
    assert numbers(out, 1, "retain")["loss"] < 1
    trace = report(out)["trace"]
    assert len(trace) in range(20, 51), "at most 25 epochs of two"
    assert trace[0]["weight"] > 0, "the gate has to open"


def test_the_saved_model_is_the_one_in_the_report(command: Command, tmp_path: Path) -> None:
    assert command("unlearn", "--epochs", 3, *FAST) in FINISHED
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
    assert command("unlearn", "--lora", "--epochs", 4, *FAST) in FINISHED
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
    adapters = loaded.peft_config["default"]
    assert (adapters.r, adapters.lora_alpha, adapters.task_type) == (16, 32, "CAUSAL_LM")
    rows = [encode(tokenizer, **row) for row in FORGET]
    told = report(tmp_path / "out")["models"][1]["answers"]["forget"]
    losses = [r.loss for r in read_answers(loaded, tokenizer, rows, texts=False)]
    assert losses == pytest.approx([row["loss"] for row in told], rel=1e-5)
    assert command("evaluate", model=saved, output="again") == 0
    again = report(tmp_path / "again")["models"][0]["numbers"]
    assert again == report(tmp_path / "out")["models"][1]["numbers"]


def test_certify_reaches_the_rate(command: Command, tmp_path: Path) -> None:
    assert command("unlearn", "--certify", 0.9, "--epochs", 20, *FAST) in FINISHED
    after = numbers(tmp_path / "out", 1, "forget")
    assert after["certificate"] >= 0.9
    assert after["exact_match"] <= 0.1
    assert report(tmp_path / "out")["goal"]["kind"] == "rate"
    trace = report(tmp_path / "out")["trace"]
    assert {row["weight"] > 0 for row in trace} == {True, False}, "a rate has to let go, too"


def test_a_holdout_says_what_never_seen_costs(
    command: Command, tmp_path: Path, files: dict[str, Path]
) -> None:
    assert command("unlearn", "--epochs", 1, holdout=files["holdout"]) in FINISHED
    found = report(tmp_path / "out")
    before = found["models"][0]
    assert found["goal"]["alpha"] == pytest.approx(before["numbers"]["holdout"]["loss"], rel=1e-6)
    assert before["membership_auc"] == 1.0


class StopAfter:
    """Press Ctrl-C in the middle of a step."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        steps: int,
        kind: type[Any],
        signals: tuple[int, ...] = (signal.SIGINT,),
    ) -> None:
        self.left, step = steps, kind.step

        def counted(method: Any, *batches: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                for number in signals:
                    signal.raise_signal(number)
            return step(method, *batches)

        monkeypatch.setattr(kind, "step", counted)


@pytest.mark.parametrize("more", [("--lora",), *(("--method", m) for m in METHODS)])
def test_stopped_and_taken_up_again_is_the_same_run_bit_for_bit(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, more: Any
) -> None:
    options = ("--alpha", 1.5, "--epochs", 4, *SIZE, *more)
    assert command("unlearn", *options, output="whole") in FINISHED
    kind = METHODS[more[1] if len(more) == 2 else "saul"]
    with monkeypatch.context() as patch:
        StopAfter(patch, 5, kind)
        assert command("unlearn", *options, output="parts") == 130
    assert "Stopped after step 5 of 8" in capsys.readouterr().out
    assert not (tmp_path / "parts" / "model").exists()
    torch.manual_seed(123)  # a fresh process has another random state
    code = command("unlearn", *options, output="parts")
    assert code in FINISHED
    assert "Going on after step 5 of 8" in capsys.readouterr().out
    names = ("model.safetensors", "adapter_model.safetensors")
    saved = next(name for name in names if (tmp_path / "whole" / "model" / name).exists())
    whole, parts = ((tmp_path / run / "model" / saved).read_bytes() for run in ("whole", "parts"))
    assert whole == parts
    assert report(tmp_path / "whole")["trace"] == report(tmp_path / "parts")["trace"]
    assert (tmp_path / "parts" / "unfinished").exists() == (code != 0)


def test_a_killed_run_goes_on_from_what_it_last_wrote_down_bit_for_bit(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    options = ("--alpha", 1.5, "--epochs", 4, *FAST)
    assert command("unlearn", *options, output="whole") in FINISHED
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
    assert command("unlearn", *options, output="parts") in FINISHED
    assert "Going on after step 3 of 8" in capsys.readouterr().out
    whole, parts = (
        (tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("whole", "parts")
    )
    assert whole == parts
    assert report(tmp_path / "whole")["trace"] == report(tmp_path / "parts")["trace"]


def test_a_second_signal_stops_at_once_and_leaves_what_was_saved_before(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    names = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(name) for name in names]
    state = tmp_path / "out" / "unfinished" / "state.pt"
    saved = []
    for signals in ((signal.SIGTERM,), names):
        with monkeypatch.context() as patch:
            StopAfter(patch, 1, METHODS["dual"], signals)
            assert command("unlearn", "--method", "dual", "--epochs", 2, *SIZE) == 130
        saved.append(state.read_bytes())
    assert saved[0] == saved[1]
    told = capsys.readouterr()
    assert told.out.count("Stopped after step 1 of 4") == 1
    assert "Interrupted; the same command goes on from" in told.out
    assert [signal.getsignal(name) for name in names] == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_while_measuring_loses_no_step(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: Any, number: int
) -> None:
    def interrupted(*_: Any) -> None:
        signal.raise_signal(number)

    with monkeypatch.context() as patch:
        patch.setattr("torch_alm.cli.unlearn.save_model", interrupted)
        assert command("unlearn", "--epochs", 1, *FAST) == 130
    taken: list[int] = []
    monkeypatch.setattr(METHODS["saul"], "step", lambda *_: taken.append(1))
    assert command("unlearn", "--epochs", 1, *FAST) in FINISHED
    assert not taken
    assert "Going on after step 2 of 2" in capsys.readouterr().out


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_an_interruption_says_what_is_left_to_go_on_from(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: Any, force: Any
) -> None:
    """Before a run is written down nothing has changed, and with --force it would begin anew."""
    left = "the same command without --force goes on" if force else "the same command goes on"
    for name, told in (("check_unreached", "nothing was changed"), ("_take_up", left)):
        with monkeypatch.context() as patch:
            patch.setattr(unlearn_module, name, lambda *_: signal.raise_signal(signal.SIGINT))
            assert command("unlearn", "--epochs", 1, *FAST, *force) == 130
        assert f"nterrupted; {told}" in " ".join(" ".join(capsys.readouterr()).split())
    assert command("unlearn", "--epochs", 1, *FAST) in FINISHED
    assert "Measuring" not in capsys.readouterr().out


def test_an_unfinished_run_of_other_settings_is_not_continued(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with monkeypatch.context() as patch:
        StopAfter(patch, 1, METHODS["saul"])
        assert command("unlearn", "--epochs", 1, *FAST) == 130
    state = (tmp_path / "out" / "unfinished" / "state.pt").read_bytes()
    assert command("unlearn", "--epochs", 2, "--mu", 1, *FAST) == 2
    assert "mu was 0.1 and is now 1.0" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "out" / "unfinished" / "state.pt").read_bytes() == state
    assert command("unlearn", "--epochs", 2, "--mu", 1, *FAST, "--force") in FINISHED
    assert len(report(tmp_path / "out")["trace"]) == 4


@pytest.mark.parametrize("content", ["", "[]", '{"settings": ', "{}"])
@pytest.mark.parametrize("name", ["run.json", "state.pt"])
def test_a_run_that_cannot_be_read_is_refused_and_force_begins_anew(
    name: str,
    content: str,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    with monkeypatch.context() as patch:
        StopAfter(patch, 1, METHODS["saul"])
        assert command("unlearn", "--epochs", 1, *FAST) == 130
    (tmp_path / "out" / "unfinished" / name).write_text(content)
    assert command("unlearn", "--epochs", 1, *FAST) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"{name} cannot be read" in told and "--force begins anew" in told
    assert command("unlearn", "--epochs", 1, *FAST, "--force") in FINISHED


def test_a_result_is_not_replaced_by_a_run_that_has_lost_its_state(
    command: Command, tmp_path: Path, capsys: Any
) -> None:
    assert command("unlearn", "--epochs", 1, *FAST) in FINISHED
    (tmp_path / "out" / "unfinished" / "state.pt").unlink()
    assert command("unlearn", "--epochs", 1, *FAST) == 2
    assert "is not empty" in " ".join(capsys.readouterr().err.split())


def test_more_steps_than_any_run_takes_are_refused(command: Command, capsys: Any) -> None:
    for given in (("--steps", 10**21), ("--epochs", 10**9)):
        assert command("unlearn", *given, *FAST) == 2
        assert "which no run takes" in " ".join(capsys.readouterr().err.split())
    assert command("unlearn", "--epochs", 1, *FAST) in FINISHED, "nothing was left of the other"


def test_rows_that_changed_are_other_settings(
    command: Command, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with monkeypatch.context() as patch:
        StopAfter(patch, 1, METHODS["saul"])
        code = command("unlearn", "--epochs", 1, *FAST, holdout=files["holdout"])
        assert code == 130
    assert command("unlearn", "--epochs", 1, *FAST) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "other settings: holdout was '" in told
    assert "and is now None. Did" in told
    files["retain"].write_text(files["retain"].read_text().replace("B1", "B9"))
    assert command("unlearn", "--epochs", 1, *FAST, holdout=files["holdout"]) == 2
    assert "other settings: retain was '" in " ".join(capsys.readouterr().err.split())


def test_three_settings_that_differ_are_named(tmp_path: Path) -> None:
    unfinished = Unfinished(tmp_path)
    was = {"lr": 0.1, "beta": None, "method": "npo", "seed": 0, "read": ("a", "b")}
    unfinished.begin(was, {"measured": 1})
    unfinished.save({"step": 1})
    assert unfinished.claim(was, force=False) == {"settings": {**was, "read": ["a", "b"]},
                                                  "before": {"measured": 1}}  # fmt: skip
    now = {**was, "lr": 0.2, "beta": 1.0, "method": "dual", "seed": 1}
    told = "lr was 0.1 and is now 0.2; beta was None and is now 1.0; method was 'npo' and is now "
    with pytest.raises(Refusal, match=told + r"'dual'\. Did"):
        unfinished.claim(now, force=False)
    assert unfinished.claim(now, force=True) is None
    assert unfinished.load() == {"step": 1}, "nothing is lost before another run begins"
    unfinished.begin(now, {"measured": 2})
    assert unfinished.load() is None
    unfinished.done()
    assert not unfinished.folder.exists()
    unfinished.done()  # as it is


GIVEN = {"model": "a/M", "forget": "f", "retain": "r", "output": "o"}


@pytest.mark.parametrize(
    ("words", "lr", "beta"),
    [
        ((), None, None),
        (("--lora",), None, None),
        (("--method", "npo"), None, 0.1),
        (("--method", "simnpo", "--lora"), None, 4.5),
        (("--method", "npo", "--lora", "--lr", "0.5", "--beta", "2"), 0.5, 2.0),
    ],
)
def test_settings_are_what_was_given_or_what_the_help_says(
    tmp_path: Path, words: tuple[str, ...], lr: float, beta: float | None
) -> None:
    paths = {name: tmp_path / name for name in ("forget", "retain")}
    for name, path in paths.items():
        path.write_text(name)
    named = [w for k, v in (GIVEN | paths).items() for w in (f"--{k}", str(v))]
    found = settings_of(parser().parse_args(["unlearn", *named, *words]))
    assert (found["lr"], found["beta"]) == (lr, beta)
    for name, path in paths.items():
        hashed = hashlib.sha256(name.encode()).hexdigest()
        assert found[name] == f"{path}, sha256 {hashed[:16]}"
    options = {"model", "forget", "retain", "max_length", "rows", "batch_size", "seed", "device",
               "precision", "template", "system", "columns", "redact", "method", "alpha", "certify",
               "lora", "lora_rank", "lora_targets", "merge", "accumulate",
               "epochs", "steps", "lr", "rho", "mu", "beta"}  # fmt: skip
    assert set(found) == options, "where the results go changes nothing of them"


@pytest.mark.parametrize(("method", "own"), [("npo", {"beta": 2.0}), ("saul", {"rho": 0.25})])
def test_a_run_takes_the_numbers_it_was_given(
    command: Command, monkeypatch: pytest.MonkeyPatch, method: str, own: dict[str, float]
) -> None:
    seen: list[Training] = []
    save = unlearn_module.save_model

    def noted(given: Any, run: Training, *more: Any) -> Any:
        seen.append(run)
        return save(given, run, *more)

    monkeypatch.setattr("torch_alm.cli.unlearn.save_model", noted)
    numbers = {"method": method, "lr": 0.5, **own, "mu": 0.125, "alpha": 3.0, "epochs": 2,
               "batch-size": 5, "seed": 9, "precision": "bf16"}  # fmt: skip
    words = [word for name, value in numbers.items() for word in (f"--{name}", value)]
    assert command("unlearn", *words) in FINISHED
    (run,) = seen
    assert type(run.method) is METHODS[method]
    assert run.method.rates == Rates(**{"lr": 0.5, "rho": 1e-3, "mu": 0.125, "beta": 0.0} | own)
    assert (run.method.goal.kind, run.method.goal.alpha) == ("loss", 3.0)
    assert run.order == list(pairs(range(6), range(8), 5, 2, 9))
    assert run.pad == 0
    assert torch.initial_seed() == 9
    with run.method.autocast():
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("verb", "words", "lora"),
    [("unlearn", ("--lora",), True), ("unlearn", (), False), ("evaluate", (), False),
     ("attack", (), False)],
)  # fmt: skip
def test_frozen_weights_may_be_narrow_and_others_may_not(
    command: Command, monkeypatch: pytest.MonkeyPatch, verb: str, words: Any, lora: bool
) -> None:
    seen: list[Any] = []

    def noted(*found: str, **more: bool) -> Any:
        seen.append((*found, more))
        raise Refusal("enough?")

    monkeypatch.setattr("torch_alm.cli.loading.place", noted)
    assert command(verb, "--precision", "fp32", *words) == 2
    assert seen == [("cpu", "fp32", {"lora": lora})]


@pytest.mark.parametrize(
    ("there", "asked", "expected"),
    [
        ((), ("auto", "auto", False), ("cpu", False, torch.float32)),
        ((), ("auto", "bf16", True), ("cpu", True, torch.float32)),
        (("mps",), ("auto", "auto", True), ("mps", False, torch.float32)),
        (("mps", "gpu", "bf16"), ("auto", "auto", False), ("cuda", True, torch.float32)),
        (("gpu", "bf16"), ("cuda", "auto", True), ("cuda", True, torch.bfloat16)),
        (("gpu", "bf16"), ("cuda", "fp32", True), ("cuda", False, torch.float32)),
        (("gpu", "bf16"), ("cpu", "auto", True), ("cpu", False, torch.float32)),
        (("gpu",), ("auto", "auto", True), ("cuda", False, torch.float32)),
        (("gpu",), ("auto", "bf16", True), ("cuda", True, torch.float32)),
    ],
)
def test_a_model_goes_where_there_is_room_for_it(
    monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...], asked: Any, expected: Any
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: "gpu" in there)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: "bf16" in there)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: "mps" in there)
    device, precision, lora = asked
    found = place(device, precision, lora=lora)
    assert (found.device, found.autocast, found.dtype) == expected


def test_what_is_narrow_is_bfloat16_whatever_torch_would_take() -> None:
    usual = torch.get_autocast_dtype("cpu")
    torch.set_autocast_dtype("cpu", torch.float16)
    try:
        with place("cpu", "bf16", lora=False).context()():
            assert torch.get_autocast_dtype("cpu") is torch.bfloat16
        with place("cpu", "fp32", lora=False).context()():
            assert not torch.is_autocast_enabled("cpu")
    finally:
        torch.set_autocast_dtype("cpu", usual)


@pytest.mark.parametrize("shown", [True, False])
def test_what_is_quiet_for_a_moment_is_as_loud_as_before_after_it(shown: bool) -> None:
    hub = getLogger("huggingface_hub")

    def state() -> tuple[object, ...]:
        return logging.is_progress_bar_enabled(), logging.get_verbosity(), hub.level

    before = state()
    try:
        (logging.enable_progress_bar if shown else logging.disable_progress_bar)()
        logging.set_verbosity_info()
        hub.setLevel(WARNING)
        with quiet():
            assert state() == (False, logging.ERROR, CRITICAL)
            warnings.warn("of another library", FutureWarning, stacklevel=1)
            with pytest.raises(UserWarning):
                warnings.warn("of anything else", UserWarning, stacklevel=1)
        assert state() == (shown, logging.INFO, WARNING)
    finally:
        (logging.enable_progress_bar if before[0] else logging.disable_progress_bar)()
        logging.set_verbosity(before[1])
        hub.setLevel(before[2])


@pytest.mark.parametrize(
    ("alpha", "certify", "unseen", "told"),
    [
        (3.0, None, True, ("loss", 3.0, "--alpha")),
        (None, 0.9, True, ("rate", 0.9, "--certify")),
        (None, None, False, ("loss", 4.0, "the default; --holdout measures one")),
    ],
)
def test_a_level_says_where_it_is_from(
    model: Any, tokenizer: Any, alpha: Any, certify: Any, unseen: bool, told: Any
) -> None:
    rows = [encode(tokenizer, **row) for row in HOLDOUT] if unseen else []
    assert goal_of(alpha, certify, rows, model, tokenizer) == Goal(*told)


def test_a_level_of_unseen_rows_is_their_mean_loss_with_its_error(
    model: Any, tokenizer: Any
) -> None:
    short = {"question": HOLDOUT[0]["question"], "answer": "Rome"}
    rows = [encode(tokenizer, **row) for row in [*HOLDOUT[1:], short]]
    losses = []
    for row in rows:
        ids, labels = (torch.tensor([row[name]]) for name in ("input_ids", "labels"))
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, :-1]
        losses.append(float(nn.functional.cross_entropy(logits, labels[0, 1:])))
    error = stdev(losses) / len(losses) ** 0.5
    found = goal_of(None, None, rows, model, tokenizer)
    assert (found.kind, found.alpha) == ("loss", pytest.approx(fmean(losses), rel=1e-5))
    assert found.error == pytest.approx(error, rel=1e-4)
    assert found.source == f"the loss of 4 rows never seen, standard error {error:.2f}"


def test_a_run_says_what_it_is_about(command: Command, tmp_path: Path, capsys: Any) -> None:
    assert command("unlearn", "--certify", 0.5, "--epochs", 1) in FINISHED
    found = capsys.readouterr()
    told = " ".join(found.out.split())
    assert told.startswith(
        "Measuring the model as it is. "
        "Forgetting until 0.5 of answers, certified (--certify). "
        "Ended after 1 of at most 1 steps, at a rate of 1e-05: no more steps were allowed. "
        "Would a larger --steps do? before after"
    )
    assert f" {tmp_path / 'out'}: model, report.html, report.json." in told
    assert told.endswith(
        "MB) is kept: with a --steps above 1, or another --max-retain-loss, the same command goes "
        "on from there. It may be "
        "deleted."
    )
    bars = re.findall(r"^\w+", re.sub(r"[\r\n]+", "\n", found.err), re.MULTILINE)
    assert [name for name, _ in groupby(bars)] == ["before", "saul", "after"]
    assert "| 14/14 rows" in found.err
    assert command("unlearn", "--epochs", 1, output="b") in FINISHED
    told = " ".join(capsys.readouterr().out.split())
    assert "Forgetting until 4 nats per token (the default; --holdout measures one)." in told


def measured(loss: float, exact: float, answers: list[dict[str, Any]]) -> dict[str, Any]:
    kept = {"loss": loss, "rouge": exact, "exact_match": exact, "unmeasured": 0.0}
    return {"numbers": {"forget": kept, "retain": kept}, "answers": {"forget": answers}}


def test_the_report_of_a_run_says_how_it_went() -> None:
    controller = {"active_share": 0.25, "status": "not_met", "multiplier": 1.5}
    method = SimpleNamespace(constraint=SimpleNamespace(metrics=lambda: controller))
    training: Any = SimpleNamespace(method=method, trace=[{"forget": 1.0}] * 8, ended="Ended.")
    settings = {"model": "a/M", "method": "npo", "lr": 0.5}
    gone = {"verbatim": False, "said": False, "rouge": 0.25, "loss": 2.5, "where": "f, line 1"}
    start = {"measured": measured(0.5, 0.25, []), "goal": 0}
    after = measured(2.5, 0.25, [gone])
    found = content_of(settings, Goal("loss", 2.0, "--alpha"), start, after, training, 3.0, "N.")
    versions, verdict = found.pop("versions"), found.pop("verdict")
    assert versions["torch"] == version("torch")
    assert versions["python"] == platform.python_version()
    assert (verdict["outcome"], verdict["code"], verdict["worst"]) == ("met", 0, [gone])
    assert verdict["text"] == (
        "The goal is met: the loss of the forget answers is 2.50 nats per token; asked for were "
        "2.00 (--alpha). None of 1 answers is still said; 25% of their words are."
    )
    assert found == {
        "title": "Unlearning M",
        "subtitle": "npo, 8 steps; forgetting was pushed in 25% of them.",
        "settings": {**settings, "max_retain_loss": 3.0, "known_before": True},
        "goal": {"kind": "loss", "alpha": 2.0, "source": "--alpha", "error": 0.0, "words": 0.5},
        "models": [{"name": "before", **start["measured"]}, {"name": "after", **after}],
        "controller": controller,
        "trace": training.trace,
        "attacks": [],
        "notes": ["N.", "Ended."],
    }
    start |= {"known_before": False}
    unknown = content_of(settings, Goal("loss", 2.0, ""), start, after, training, 3.0, None)
    assert unknown["notes"] == ["Ended."]
    assert unknown["verdict"]["outcome"] == "not met", "what was never known is not forgotten"


def test_the_bar_of_a_run_that_goes_on_begins_where_it_stopped(
    model: Any, tokenizer: Any, capsys: Any
) -> None:
    rows = [encode(tokenizer, **row) for row in FORGET]
    method = METHODS["grad_diff"](
        copy.deepcopy(model), Goal("loss", 1.0, ""), Rates(1e-3, 0.0, 0.1, 0.0), nullcontext
    )
    run = Training(method, rows, rows, 0, epochs=2, batch_size=3, seed=0)
    taken = {"retain_loss": 0.0, "forget": 0.0, "violation": 0.0, "lambda": 0.0, "weight": 0.0}
    run.trace = [taken] * 3
    run.run("the label", lambda: None, 15.0)
    shown = re.split(r"[\r\n]+", capsys.readouterr().err.strip("\r\n"))
    assert shown[0].startswith("the label|")
    assert "| 3/4 " in shown[0]
    assert {len(line) for line in shown} == {80}
    assert shown[-1].startswith("the label|")
    assert re.search(
        r"\| 4/4 \S+, retain \d\.\d\d, lambda \d\.\d+, violation [+-]\d\.\d+, ", shown[-1]
    )
    assert not method.model.training


def test_the_bar_keeps_its_width_and_is_the_one_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "command.md").read_text(encoding="utf-8")
    numbers = {"retain_loss": 0.12, "lambda": 0.0, "violation": -6.25, "weight": 0.0}
    assert f"| 18/50 00:07, {postfix(numbers)}\n" in page
    pushed = postfix({"retain_loss": 0.5, "lambda": 2.3456, "violation": 0.5, "weight": 0.5})
    assert pushed == "retain 0.50, lambda 2.346, violation +0.50, open  "
    assert len(pushed) == len(postfix(numbers))


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_as_narrow_as_their_place(folder: Path, dtype: torch.dtype) -> None:
    model, _ = load_model(folder, dtype=dtype)
    assert {p.dtype for p in model.parameters()} == {dtype}


@pytest.mark.parametrize(("saved", "there"), [(2, 2), (2, 1), (0, 1), (2, 0), (0, 0)])
def test_the_random_states_of_devices_return_where_there_are_as_many(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, saved: int, there: int
) -> None:
    """With another number of devices no run goes on bit for bit; it goes on."""
    rows = [encode(tokenizer, **row) for row in FORGET]
    method = METHODS["dual"](model, Goal("loss", 1.0, ""), Rates(1e-3, 0.0, 0.1, 0.0), nullcontext)
    run = Training(method, rows, rows, 0, epochs=1, batch_size=4, seed=0)
    states = [torch.tensor([i], dtype=torch.uint8) for i in range(saved)]
    given: list[Any] = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: saved > 0)
    monkeypatch.setattr("torch.cuda.get_rng_state_all", lambda: states)
    monkeypatch.setattr("torch.cuda.device_count", lambda: there)
    monkeypatch.setattr("torch.cuda.set_rng_state_all", given.append)
    state = run.state()
    assert len(state["random"]) == 1 + saved
    drawn = torch.rand(3)
    run.load(state)
    assert torch.equal(torch.rand(3), drawn)
    assert given == ([states] if saved == there > 0 else [])
