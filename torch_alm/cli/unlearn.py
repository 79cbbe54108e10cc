"""`torch-alm unlearn`: from a model and two files to a model that forgot, and a report of it."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from torch_alm.cli import report
from torch_alm.cli.adapters import check_asked
from torch_alm.cli.building import guide_of, trained, training_of
from torch_alm.cli.closing import content_of, save_model
from torch_alm.cli.goal import (
    Goal,
    beyond_knowledge,
    check_goal,
    check_unreached,
    goal_of,
    with_unseen_words,
)
from torch_alm.cli.keeping import Keeper
from torch_alm.cli.known import is_known
from torch_alm.cli.loading import Files, Loaded, load_for, read_files
from torch_alm.cli.methods import METHODS, check_own
from torch_alm.cli.output import MODEL, REPORTS, Output
from torch_alm.cli.plan import plan_of
from torch_alm.cli.plan import told as plan_told
from torch_alm.cli.redaction import redacted
from torch_alm.cli.report import Result
from torch_alm.cli.settings import settings_of
from torch_alm.cli.space import check_space, saved_bytes, state_bytes
from torch_alm.cli.training import Stopped, Training
from torch_alm.cli.unfinished import Unfinished
from torch_alm.language import LanguageModel
from torch_alm.unlearning.files import settle
from torch_alm.unlearning.models import stored_dtype
from torch_alm.unlearning.refusal import Refusal, Unwritten
from torch_alm.unlearning.whole import (
    check_answers,
    check_finite,
    fingerprint,
    fingerprint_of_words,
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Ready:
    """All that a run needs before anything is measured."""

    given: argparse.Namespace
    found: Files
    settings: dict[str, Any]
    output: Output
    unfinished: Unfinished
    is_new: bool
    loaded: Loaded
    model: LanguageModel
    saved: int


@dataclass(frozen=True)
class Run:
    """A run that has begun, and when; what was measured before it, and what was noted."""

    ready: Ready
    training: Training
    keeper: Keeper
    start: Mapping[str, Any]
    begun: datetime
    note: str | None


def unlearn(given: argparse.Namespace, say: Say) -> Result:
    """Run, or go on with, what was asked; the code says how it ended, 130 that it was stopped."""
    now = datetime.now(timezone.utc)
    ready = prepared(given)
    if given.dry_run:
        return planned(ready)
    try:
        return _carried_out(begun(ready, now, say), say)
    except KeyboardInterrupt:
        if not ready.unfinished.is_own:
            raise
        told = f"Interrupted; {_same(given)} goes on from {ready.unfinished.folder}."
        return Result(130, None, told)


def _carried_out(run: Run, say: Say) -> Result:
    given = run.ready.given
    _take_up(run, say)
    try:
        run.training.run(given.method, run.keeper.autosave, given.save_every)
    except Stopped:  # a KeyboardInterrupt may stand within a step, which cannot be taken up again
        return _stopped(run)
    try:
        if run.training.ended is not None:
            say(run.training.ended)
        _check_trained(run)
        return run.keeper.insist(lambda: _finished(run))
    except KeyboardInterrupt:
        return _stopped(run)


def prepared(given: argparse.Namespace) -> Ready:
    """Read and check everything that was given; writes nothing.

    Raises:
        Refusal: any of it cannot be used, or the result could not be saved.
    """
    check_goal(given.alpha, given.certify)
    check_asked(given)
    check_own(given.method, given.rho, given.beta)
    found = read_files(given)
    settings = settings_of(given)
    output, unfinished = Output(given.output, (MODEL, *REPORTS)), Unfinished(given.output)
    is_new = unfinished.claim(settings, force=given.force) is None
    is_whole = all((given.output / name).exists() for name in output.targets)
    goes_on = not is_new and (unfinished.state.exists() or not is_whole)
    output.check([given.model], force=given.force or goes_on)
    loaded = load_for(given, given.model, found, lora=given.lora)
    settings |= {
        "weights": fingerprint(loaded.model),
        "tokenizer": fingerprint_of_words(loaded.tokenizer),
    }
    model = trained(settings, loaded, recomputes=given.gradient_checkpointing)
    saves_adapters = given.lora and not given.merge
    saved = saved_bytes(model, None if saves_adapters else stored_dtype(given.model))
    if is_new:
        check_space(given.output, state_bytes(model, METHODS[given.method]), saved)
    return Ready(given, found, settings, output, unfinished, is_new, loaded, model, saved)


def planned(ready: Ready) -> Result:
    """The plan of a run: what it would do and take, for a dry run."""
    given, loaded = ready.given, ready.loaded
    goal = _goal(given, loaded)
    training = training_of(ready.settings, loaded, ready.model, goal)
    plan = plan_of(training, ready.saved)
    told = plan_told(plan, given.method, given.lr, f"{goal.alpha:.4g} {goal.unit} ({goal.source})")
    more = "" if ready.is_new else " The run that stands there would go on."
    return Result(0, None, f"{told}\n\nA dry run: nothing was written.{more}", plan)


def _goal(given: argparse.Namespace, loaded: Loaded) -> Goal:
    unseen = loaded.rows("holdout")
    return goal_of(given.alpha, given.certify, unseen, loaded.model, loaded.tokenizer)


def begun(ready: Ready, now: datetime, say: Say) -> Run:
    """Everything up to the first step, or to where an earlier run stands."""
    given, loaded, unfinished = ready.given, ready.loaded, ready.unfinished
    if ready.is_new:
        start = _measured(given, loaded, say)
    else:
        start = unfinished.check_same(ready.settings)["before"]
    goal = Goal(**start["goal"])
    say(f"Forgetting until {goal.alpha:.4g} {goal.unit} ({goal.source}).")
    if (note := beyond_knowledge(goal, loaded.model)) is not None:
        say(note)
    training = training_of(ready.settings, loaded, ready.model, goal)
    training.guide = guide_of(given, training, loaded, start)
    if ready.is_new:  # only now: nothing is refused any more
        unfinished.begin(ready.settings, start)
    settle(given.output / MODEL)
    return Run(ready, training, Keeper(unfinished, training), start, now, note)


def _measured(given: argparse.Namespace, loaded: Loaded, say: Say) -> dict[str, Any]:
    """The model and the level as they are.

    Raises:
        Refusal: the model says too little of what it shall forget.
    """
    say("Measuring the model as it is.")
    measured = loaded.measured(given.rows, "before")
    known = is_known(
        loaded, measured["answers"]["forget"], say, anyway=given.anyway, redact=given.redact
    )
    measured = redacted(measured) if given.redact else measured
    goal = with_unseen_words(_goal(given, loaded), measured["numbers"].get("holdout"))
    if not given.anyway:
        check_unreached(goal, measured["numbers"]["forget"])
    return {"measured": measured, "known_before": known, "goal": asdict(goal)}


def _take_up(run: Run, say: Say) -> None:
    """Go on from what an earlier call has left, if it has.

    Raises:
        Refusal: the run is through, and neither more steps nor another limit are asked for.
    """
    training, limit = run.training, run.ready.given.max_retain_loss
    if (state := run.keeper.unfinished.load()) is None:
        return
    training.load(state)
    run.keeper.kept = len(training.trace)
    if (most := state.get("through")) is not None:
        if training.steps <= most and limit == state.get("limit"):
            raise Refusal(
                f"--output {run.ready.given.output} holds a run that is through after "
                f"{len(training.trace)} of at most {most} steps. Did you mean a --steps above "
                f"{most} or another --max-retain-loss, which go on with it, or --force to begin "
                "anew?"
            )
        training.reopen()
    say(f"Going on after step {len(training.trace)} of {training.steps}.")


def _check_trained(run: Run) -> None:
    training = run.training
    try:
        check_finite("the trained model", training.method.model)
        check_answers("the trained model", training.method.model, training.forget[0])
    except Refusal as refusal:
        run.keeper.unfinished.done()
        raise Refusal(f"{refusal} Nothing was saved. Would a smaller --lr do?") from refusal


def _finished(run: Run) -> Result:
    """Save and report.

    Raises:
        Refusal: a part could not be written, and the state of the run was, from which the same
            command goes on.
        Unwritten: nor could that.
    """
    try:
        content = _reported(run)
    except Unwritten as problem:
        run.keeper.save()
        raise Refusal(
            f"{problem} The run is through, and kept in {run.keeper.unfinished.folder}: "
            f"{_same(run.ready.given)} goes on with saving."
        ) from problem
    code = content["verdict"]["code"]
    written = ", ".join((MODEL, *REPORTS))
    kept = _close(run, code)
    return Result(code, content, f"{run.ready.given.output}: {written}.{kept}")


def _reported(run: Run) -> Mapping[str, Any]:
    ready, training, limit = run.ready, run.training, run.ready.given.max_retain_loss
    after = save_model(ready.given, training, ready.loaded, ready.found, ready.output)
    ready.output.note(MODEL)
    goal = training.method.goal
    content = content_of(ready.settings, goal, run.start, after, training, limit, run.note)
    device, redact = ready.loaded.place.device, ready.given.redact
    return report.publish(ready.output, content, run.begun, device, redact=redact)


def _close(run: Run, code: int) -> str:
    """Keep the state of a run that has not met its goal, so that it can be given more."""
    keeper, given = run.keeper, run.ready.given
    if code == 0:
        keeper.unfinished.done()
        return ""
    try:
        keeper.save(through=keeper.training.steps, limit=given.max_retain_loss)
    except Unwritten as problem:
        return f" It can be given more steps only from where it is written down: {problem}"
    size = keeper.unfinished.state.stat().st_size / 1e6
    return (
        f" {keeper.unfinished.folder} ({size:,.1f} MB) is kept: with a --steps above "
        f"{keeper.training.steps}, or another --max-retain-loss, {_same(given)} goes on from "
        "there. It may be deleted."
    )


def _stopped(run: Run) -> Result:
    keeper = run.keeper
    step = f"Stopped after step {len(keeper.training.trace)} of {keeper.training.steps}"
    try:
        keeper.save() if keeper.waits else keeper.insist(keeper.save)
    except (KeyboardInterrupt, Unwritten):
        told = f"{step}, which could not be written down; {keeper.left}."
        return Result(130, None, told)
    told = f"{step}; all of it is kept, and {_same(run.ready.given)} goes on from there."
    return Result(130, None, told)


def _same(given: argparse.Namespace) -> str:
    return f"the same command{' without --force' * given.force}"
