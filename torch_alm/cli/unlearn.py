"""`torch-alm unlearn`: from a model and two files to a model that forgot, and a report of it."""

import argparse
import hashlib
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from torch_alm.cli import report
from torch_alm.cli.goal import Goal, beyond_knowledge, check_goal, goal_of, with_unseen_words
from torch_alm.cli.guide import Guide, spread
from torch_alm.cli.known import is_known
from torch_alm.cli.loading import Files, Loaded, load_for, read_files
from torch_alm.cli.measuring import measure, worst
from torch_alm.cli.methods import BETAS, METHODS, Rates
from torch_alm.cli.models import (
    is_adapter,
    quiet,
    stored_as,
    stored_dtype,
    trainable,
    with_lora,
)
from torch_alm.cli.output import MODEL, REPORTS, Output
from torch_alm.cli.redaction import redacted
from torch_alm.cli.refusal import Refusal
from torch_alm.cli.report import Result
from torch_alm.cli.sources import records_of
from torch_alm.cli.training import Stopped, Training
from torch_alm.cli.unfinished import Unfinished
from torch_alm.cli.verdict import COST_LOSS, evidence_of, judge
from torch_alm.cli.whole import check_answers, check_finite, fingerprint
from torch_alm.cli.writing import write_folder
from torch_alm.language import pad_id

Say = Callable[[str], None]
FOLLOWED = ("method", "lora", "steps", "epochs", "lr", "rho", "mu", "beta", "alpha", "certify")
READ = ("model", "max_length", "rows", "batch_size", "seed", "device", "precision")
ASKED = ("template", "system", "columns")
STEPS, EPOCHS = 1000, 10  # of a run whose length was not given, whichever is more
LR, LORA_LR = 1e-5, 1e-4  # where a run begins whose rate was not given


def unlearn(given: argparse.Namespace, say: Say) -> Result:
    """Run, or go on with, what was asked; the code says how it ended, 130 that it was stopped."""
    begun = datetime.now(timezone.utc)
    check_goal(given.alpha, given.certify)
    found = read_files(given)
    settings = settings_of(given)
    output, unfinished = Output(given.output, (MODEL, *REPORTS)), Unfinished(given.output)
    earlier = unfinished.claim(settings, force=given.force)
    output.check([given.model], force=given.force or earlier is not None)
    loaded = load_for(given, given.model, found, lora=given.lora)
    settings["weights"] = fingerprint(loaded.model)
    if earlier is None:
        start = _begin(given, settings, loaded, unfinished, say)
    else:
        start = unfinished.check_same(settings)["before"]
    goal = Goal(**start["goal"])
    say(f"Forgetting until {goal.alpha:.4g} {goal.unit} ({goal.source}).")
    if (note := beyond_knowledge(goal, loaded.model)) is not None:
        say(note)
    training = training_of(settings, loaded, goal)
    training.guide = guide_of(given, training, loaded, start)
    _take_up(given, unfinished, training, say)
    try:
        training.run(
            settings["method"], lambda: unfinished.save(training.state()), given.save_every
        )
    except Stopped:  # a KeyboardInterrupt may stand within a step, which cannot be taken up again
        return _stopped(unfinished, training)
    if training.ended is not None:
        say(training.ended)
    try:
        _check_trained(unfinished, training)
        after = save_model(given, training, loaded, found)
        output.note(MODEL)
        content = content_of(settings, goal, start, after, training, given.max_retain_loss, note)
        content["run"] = report.run_of(begun, loaded.place.device)
        content = redacted(content) if given.redact else content
        report.publish(given.output, content)
        output.note(*REPORTS)
        told = _close(unfinished, training, content["verdict"]["code"])
    except KeyboardInterrupt:
        return _stopped(unfinished, training)
    written = ", ".join((MODEL, *REPORTS))
    return Result(content["verdict"]["code"], content, f"{given.output}: {written}.{told}")


def _begin(
    given: argparse.Namespace,
    settings: Mapping[str, Any],
    loaded: Loaded,
    unfinished: Unfinished,
    say: Say,
) -> dict[str, Any]:
    """Measure the model and the level, and write down that this run has begun.

    Raises:
        Refusal: the model says too little of what it shall forget; or the result could not be
            saved, or not be used.
    """
    _check_adapters(given)
    if not given.lora:
        _check_space(given.output, loaded)
    say("Measuring the model as it is.")
    measured = measure(loaded.model, loaded.tokenizer, loaded.first(given.rows), "before")
    known = is_known(
        loaded, measured["answers"]["forget"], say, anyway=given.anyway, redact=given.redact
    )
    measured = redacted(measured) if given.redact else measured
    goal = goal_of(
        given.alpha, given.certify, loaded.rows("holdout"), loaded.model, loaded.tokenizer
    )
    goal = with_unseen_words(goal, measured["numbers"].get("holdout"))
    start = {"measured": measured, "known_before": known, "goal": asdict(goal)}
    unfinished.begin(settings, start)
    return start


def settings_of(given: argparse.Namespace) -> dict[str, Any]:
    """Everything the result depends on; two runs with the same are the same run."""
    beta = given.beta or BETAS.get(given.method)
    plain = {name: getattr(given, name) for name in (*READ, *ASKED, *FOLLOWED)}
    names = ("forget", "retain", "holdout")
    paths = {name: getattr(given, name) for name in names if getattr(given, name)}
    read = {name: f"{path}, sha256 {_hash(path)}" for name, path in paths.items()}
    return {**plain, "beta": beta, **read}


def _hash(path: Path) -> str:
    read = path.read_bytes() if path.is_file() else repr(records_of(path)).encode()
    return hashlib.sha256(read).hexdigest()[:16]


def training_of(settings: Mapping[str, Any], loaded: Loaded, goal: Goal) -> Training:
    """The method at work, before its first step."""
    torch.manual_seed(settings["seed"])
    model = with_lora(loaded.model) if settings["lora"] else loaded.model
    lr = settings["lr"] or (LORA_LR if settings["lora"] else LR)
    rates = Rates(lr, settings["rho"], settings["mu"], settings["beta"] or 0.0)
    method = METHODS[settings["method"]](model, goal, rates, loaded.place.context())
    size, steps, epochs = (settings[name] for name in ("batch_size", "steps", "epochs"))
    if steps is None and epochs is None:
        steps = max(STEPS, EPOCHS * Training.per_epoch(len(loaded.rows("forget")), size))
    return Training(
        method,
        loaded.rows("forget"),
        loaded.rows("retain"),
        pad_id(loaded.tokenizer),
        epochs=epochs or 0,
        batch_size=size,
        seed=settings["seed"],
        steps=steps,
    )


def guide_of(
    given: argparse.Namespace, training: Training, loaded: Loaded, start: Mapping[str, Any]
) -> Guide:
    """What sets the rate and ends the run, before its first step.

    The loss of the retain rows may rise as far as the verdict lets it; the rows of which that is
    told are those that the verdict asks.
    """
    method, before = training.method, start["measured"]
    limit = given.max_retain_loss

    def ask() -> bool:
        now = measure(method.model, loaded.tokenizer, loaded.first(given.rows), "asking")
        seen = evidence_of(method.goal, before, now, max_retain_loss=limit, known_before=True)
        return judge(seen).outcome == "met"

    kept = min(given.rows, len(training.retain))
    forget, retain = spread(len(training.forget)), spread(kept)
    return Guide(
        method,
        training.batches(training.forget, forget, given.batch_size),
        training.batches(training.retain, retain, given.batch_size),
        allowance=COST_LOSS if limit is None else limit - before["numbers"]["retain"]["loss"],
        fixed=given.lr is not None,
        ask=ask,
    )


def save_model(
    given: argparse.Namespace, training: Training, loaded: Loaded, found: Files
) -> dict[str, Any]:
    """Save model (or adapters) and tokenizer, whole or not at all, and ask what was saved.

    The model in memory is not what anybody will use: the folder is loaded again and measured before
    it takes its name. A model has the dtype that the original was stored in, adapters float32.
    """
    dtype = stored_dtype(given.model)

    def fill(draft: Path) -> dict[str, Any]:
        model = training.method.model
        with quiet(), nullcontext() if given.lora else stored_as(model, dtype):
            model.save_pretrained(draft)
            loaded.tokenizer.save_pretrained(draft)
        model.to("cpu")  # so that a GPU has to hold one of the two
        saved = load_for(given, str(draft), found)
        return measure(saved.model, saved.tokenizer, saved.first(given.rows), "after")

    return write_folder(given.output / MODEL, fill)


def content_of(
    settings: Mapping[str, Any],
    goal: Goal,
    start: Mapping[str, Any],
    after: Mapping[str, Any],
    training: Training,
    max_retain_loss: float | None,
    note: str | None,
) -> dict[str, Any]:
    """What `report.json` says."""
    controller = training.method.constraint.metrics()
    before, known = start["measured"], start.get("known_before", True)
    seen = evidence_of(goal, before, after, max_retain_loss=max_retain_loss, known_before=known)
    found = judge(seen)
    return {
        "title": f"Unlearning {Path(settings['model']).name}",
        "subtitle": (
            f"{settings['method']}, {len(training.trace)} steps; forgetting was pushed in "
            f"{controller['active_share']:.0%} of them."
        ),
        "settings": {**settings, "max_retain_loss": max_retain_loss, "known_before": known},
        "versions": report.versions(),
        "goal": asdict(goal),
        "verdict": {
            **asdict(found),
            "code": found.code,
            "worst": worst(after["answers"]["forget"]),
        },
        "models": [{"name": "before", **before}, {"name": "after", **after}],
        "controller": controller,
        "trace": training.trace,
        "attacks": [],
        "notes": [each for each in (note, training.ended) if each],
    }


def _check_adapters(given: argparse.Namespace) -> None:
    """Refuse adapters on adapters: other tools load only one of the two, and what went returns."""
    if given.lora and is_adapter(given.model):
        raise Refusal(
            f"--model {given.model} holds adapters, and those of --lora would have to be loaded on "
            "top of them; most tools load one and leave out the other, and what was forgotten "
            "comes back. Did you mean to leave out --lora? The whole model is saved then."
        )


def _check_trained(unfinished: Unfinished, training: Training) -> None:
    try:
        check_finite("the trained model", training.method.model)
        check_answers("the trained model", training.method.model, training.forget[0])
    except Refusal as refusal:
        unfinished.done()
        raise Refusal(f"{refusal} Nothing was saved. Would a smaller --lr do?") from refusal


def _check_space(output: Path, loaded: Loaded) -> None:
    """Refuse before the work, not after it, if the result has no place."""
    needed = sum(p.numel() * p.element_size() for p in trainable(loaded.model).values())
    there = next(folder for folder in (output, *output.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise Refusal(
            f"--output {output} has {free / 1e6:,.1f} MB free, and the model alone takes "
            f"{needed / 1e6:,.1f}. Is there a larger disk?"
        )


def _take_up(
    given: argparse.Namespace, unfinished: Unfinished, training: Training, say: Say
) -> None:
    """Go on from what an earlier call has left, if it has.

    Raises:
        Refusal: the run is through, and no more steps are asked for than then.
    """
    if (state := unfinished.load()) is None:
        return
    training.load(state)
    if (most := state.get("through")) is not None:
        if training.steps <= most:
            raise Refusal(
                f"--output {given.output} holds a run that is through after {len(training.trace)} "
                f"of at most {most} steps. Did you mean a --steps above {most}, which goes on with "
                "it, or --force to begin anew?"
            )
        training.reopen()
    say(f"Going on after step {len(training.trace)} of {training.steps}.")


def _close(unfinished: Unfinished, training: Training, code: int) -> str:
    """Keep the state of a run that has not met its goal, so that it can be given more steps."""
    if code == 0:
        unfinished.done()
        return ""
    try:
        unfinished.save({**training.state(), "through": training.steps})
    except Refusal as refusal:
        unfinished.done()
        return f" It cannot be given more steps later: {refusal}"
    size = unfinished.state.stat().st_size / 1e6
    return (
        f" {unfinished.folder} ({size:,.1f} MB) is kept: with a --steps above {training.steps} the "
        "same command goes on from there. It may be deleted."
    )


def _stopped(unfinished: Unfinished, training: Training) -> Result:
    unfinished.save(training.state())
    told = (
        f"Stopped after step {len(training.trace)} of {training.steps}; all of it is kept. The "
        "same command goes on from there."
    )
    return Result(130, None, told)
