"""`torch-alm unlearn`: from a model and two files to a model that forgot, and a report of it."""

import argparse
import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from torch_alm.cli import report
from torch_alm.cli.goal import Goal, check_goal, goal_of
from torch_alm.cli.known import is_known
from torch_alm.cli.loading import Loaded, load_for, read_files
from torch_alm.cli.measuring import measure
from torch_alm.cli.methods import BETAS, METHODS, Rates
from torch_alm.cli.models import quiet, trainable, with_lora
from torch_alm.cli.refusal import Refusal
from torch_alm.cli.training import Stopped, Training
from torch_alm.cli.unfinished import Unfinished
from torch_alm.cli.writing import write_folder
from torch_alm.language import pad_id

Say = Callable[[str], None]
FOLLOWED = ("method", "lora", "epochs", "lr", "rho", "mu", "beta", "alpha", "certify")
READ = ("model", "max_length", "rows", "batch_size", "seed", "device", "precision")
ASKED = ("template", "system")


def unlearn(given: argparse.Namespace, say: Say) -> int:
    """Run, or go on with, what was asked; 0 when it is done, 130 when it was stopped."""
    check_goal(given.alpha, given.certify)
    found = read_files(given)
    settings = settings_of(given)
    unfinished = Unfinished(given.output)
    earlier = unfinished.claim(settings, force=given.force)
    loaded = load_for(given, given.model, found, lora=given.lora)
    if not given.lora:
        _check_space(given.output, loaded)
    if earlier is None:
        say("Measuring the model as it is.")
        start = _measured(given, loaded, say)
        unfinished.begin(settings, start)
    else:
        start = earlier["before"]
    before, goal = start["measured"], Goal(**start["goal"])
    say(f"Forgetting until {goal.alpha:.4g} {goal.unit} ({goal.source}).")
    training = training_of(settings, loaded, goal)
    if (state := unfinished.load()) is not None:
        training.load(state)
        say(f"Going on after step {len(training.trace)} of {training.steps}.")
    try:
        training.run(
            settings["method"], lambda: unfinished.save(training.state()), given.save_every
        )
    except Stopped:  # a KeyboardInterrupt may stand within a step, which cannot be taken up again
        return _stopped(unfinished, training, say)
    try:
        after = measure(training.method.model, loaded.tokenizer, loaded.first(given.rows))
        save_model(given.output / "model", training, loaded)
        known = {"known_before": start["known_before"]}
        models = {"before": before, "after": after}
        content = content_of({**settings, **known}, goal, models, training)
        report.publish(given.output, content)
    except KeyboardInterrupt:
        return _stopped(unfinished, training, say)
    unfinished.done()
    say(report.terminal(content))
    say(f"\n{given.output}: model, report.html, report.json.")
    return 0


def _measured(given: argparse.Namespace, loaded: Loaded, say: Say) -> dict[str, Any]:
    """What the model knows before the first step, whether it knows enough to forget, and the goal.

    Raises:
        Refusal: it says too little of what it shall forget.
    """
    measured = measure(loaded.model, loaded.tokenizer, loaded.first(given.rows))
    known = is_known(loaded, measured["answers"]["forget"], say, anyway=given.anyway)
    goal = goal_of(
        given.alpha, given.certify, loaded.rows("holdout"), loaded.model, loaded.tokenizer
    )
    return {"measured": measured, "known_before": known, "goal": asdict(goal)}


def settings_of(given: argparse.Namespace) -> dict[str, Any]:
    """Everything the result depends on; two runs with the same are the same run."""
    lr = given.lr or (1e-4 if given.lora else 1e-5)
    beta = given.beta or BETAS.get(given.method)
    plain = {name: getattr(given, name) for name in (*READ, *ASKED, *FOLLOWED)}
    names = ("forget", "retain", "holdout")
    paths = {name: getattr(given, name) for name in names if getattr(given, name)}
    read = {name: f"{path}, sha256 {_hash(path)}" for name, path in paths.items()}
    return {**plain, "lr": lr, "beta": beta, **read}


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def training_of(settings: Mapping[str, Any], loaded: Loaded, goal: Goal) -> Training:
    """The method at work, before its first step."""
    torch.manual_seed(settings["seed"])
    model = with_lora(loaded.model) if settings["lora"] else loaded.model
    rates = Rates(settings["lr"], settings["rho"], settings["mu"], settings["beta"] or 0.0)
    method = METHODS[settings["method"]](model, goal, rates, loaded.place.context())
    return Training(
        method,
        loaded.rows("forget"),
        loaded.rows("retain"),
        pad_id(loaded.tokenizer),
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        seed=settings["seed"],
    )


def save_model(folder: Path, training: Training, loaded: Loaded) -> None:
    """Model (or adapters) and tokenizer, whole or not at all."""

    def fill(draft: Path) -> None:
        with quiet():
            training.method.model.save_pretrained(draft)
            loaded.tokenizer.save_pretrained(draft)

    write_folder(folder, fill)


def content_of(
    settings: Mapping[str, Any], goal: Goal, models: Mapping[str, Any], training: Training
) -> dict[str, Any]:
    """What `report.json` says."""
    controller = training.method.constraint.metrics()
    share = controller["active_share"]
    return {
        "title": f"Unlearning {Path(settings['model']).name}",
        "subtitle": (
            f"{settings['method']}, {len(training.trace)} steps, gate open in {share:.0%} of them; "
            f"the constraint ended {controller['status'].replace('_', ' ')}."
        ),
        "settings": dict(settings),
        "versions": report.versions(),
        "goal": asdict(goal),
        "models": [{"name": name, **measured} for name, measured in models.items()],
        "controller": controller,
        "trace": training.trace,
        "attacks": [],
        "notes": [],
    }


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


def _stopped(unfinished: Unfinished, training: Training, say: Say) -> int:
    unfinished.save(training.state())
    say(
        f"Stopped after step {len(training.trace)} of {training.steps}; all of it is kept. The "
        "same command goes on from there."
    )
    return 130
