"""`torch-alm unlearn`: a run from files to a saved model and its report."""

import argparse
import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode

from torch_alm.command.files import read_files
from torch_alm.command.models import is_bare, load_bare, load_for, stored_dtype
from torch_alm.command.output import Result, check_output
from torch_alm.unlearning import report
from torch_alm.unlearning.asking import measure
from torch_alm.unlearning.checks import KEY, LIMITED, Checks
from torch_alm.unlearning.errors import Refusal, Say, first_line
from torch_alm.unlearning.folders import MODEL, REPORTS, write_folder, write_json
from torch_alm.unlearning.loading import Setup
from torch_alm.unlearning.measurement import Measurement
from torch_alm.unlearning.model import check_trained, fingerprint, freeze_below, narrow
from torch_alm.unlearning.plan import plan_memory
from torch_alm.unlearning.ranks import (
    agree,
    check_group,
    check_shared,
    join_group,
    run_on_first,
    share,
)
from torch_alm.unlearning.rows import Entry
from torch_alm.unlearning.run import Run, begin_run, make_checks, make_trainable, resume_run
from torch_alm.unlearning.train import catch_stop, check_reporter

LIMITS = ("steps", "epochs", "max_retain_loss")  # a change of these lets an ended run go on
FREE = (*LIMITS, "max_probe_loss", "save_every", "report_to")  # may change when a run goes on
PLANNED = (1, 2, 8)  # processes
UNFINISHED = "unfinished"  # the folder with the state of a run
UNTOLD = ("verb", "config", "output", "force", "json", "quiet", "dry_run")


@dataclass(frozen=True)
class Job:
    """The options of a run, and the run."""

    given: argparse.Namespace
    settings: dict[str, Any]
    run: Run
    began: datetime

    @property
    def folder(self) -> Path:
        """The folder with the state of the run."""
        return self.given.output / UNFINISHED

    @property
    def rerun(self) -> str:
        """The command that continues the run."""
        return f"the same command{' without --force' * self.given.force}"


def unlearn(given: argparse.Namespace, say: Say) -> Result:
    """Begin or continue a run; the code is that of its verdict, or 130 if it was stopped."""
    join_group(given.device)
    began = share(datetime.now(timezone.utc))
    check_group()
    with agree():
        found = read_files(given)
        record = None if given.force else _read_record(given.output / UNFINISHED)
        replaces = given.force or record is not None
        check_output(given.output, (MODEL, *REPORTS), [given.model], force=replaces)
        check_reporter(given.report_to)
        if given.dry_run and is_bare(given.model):
            return _plan(given, found)
        day = datetime.fromisoformat((record or {}).get("day", began.astimezone().isoformat()))
        loaded = load_for(given, given.model, found, lora=given.lora, day=day)
        loaded = replace(loaded, is_divided=True)
        if not given.lora:
            freeze_below(loaded.model, given.layers)
        settings = _collect_settings(given, loaded)
    check_shared(settings, loaded)
    if record is None:
        run = begin_run(loaded, say)
    else:
        _check_same(given.output, record["settings"], settings)
        run = resume_run(loaded, record["start"], say)
    run = replace(run, loaded=make_trainable(run.loaded))
    job = Job(given, settings, run, began)
    with TemporaryDirectory() as nowhere:  # a Trainer makes its folder at once
        checks = make_checks(run, Path(nowhere) if given.dry_run else job.folder)
    lines, planned = run.opening_report(checks.trainer)
    if given.dry_run:
        return Result(0, None, "\n".join([*lines, "A dry run: nothing was written."]), planned)
    for line in lines:
        say(line)
    return _train(job, checks, record)


def _plan(given: argparse.Namespace, found: Mapping[str, list[Entry]]) -> Result:
    """Say what a run takes of memory, of a model that is given by its configuration alone."""
    with FakeTensorMode():
        loaded = load_bare(given, found)
        freeze_below(loaded.model, given.layers)
        plans = {ranks: plan_memory(loaded, ranks) for ranks in PLANNED}
    lines = ["By its configuration, without its weights, each process takes in GB:"]
    for ranks, plan in plans.items():
        parts = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in plan.items())
        lines.append(f"{ranks} process{'es' if ranks > 1 else ''}: {parts}.")
    return Result(0, None, "\n".join([*lines, "Nothing was written."]), {"bytes": plans})


def _read_record(folder: Path) -> dict[str, Any] | None:
    """Read the record of an earlier run in its folder, if there is one."""
    path = folder / "run.json"
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Refusal(
            f"{path} is damaged ({first_line(error)}), and the run cannot go on. Did you mean "
            "--force, to begin anew?"
        ) from error


def _check_same(folder: Path, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise `Refusal` if settings other than the free ones differ from the folder's."""
    different = [k for k in {**was, **now} if k not in FREE and was.get(k) != now.get(k)]
    if different:
        told = "; ".join(f"{k} was {was.get(k)!r} and is now {now.get(k)!r}" for k in different[:3])
        raise Refusal(
            f"--output {folder} holds a run of other settings: {told}. Did you mean another "
            "folder, or --force to begin anew?"
        )


def _train(job: Job, checks: Checks, record: Mapping[str, Any] | None) -> Result:
    """Train from the last checkpoint on."""
    trainer = checks.trainer
    last = run_on_first(lambda: _open_folder(job, record, trainer.args.max_steps))
    with catch_stop(trainer.heard):  # the first Ctrl-C after the last step changes nothing
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
        if not checks.is_stopped:
            checks.release()
            return run_on_first(lambda: _publish(job, checks))
    step, most = trainer.state.global_step, trainer.args.max_steps
    told = f"Stopped after step {step} of {most}; all of it is kept, and {job.rerun} goes on."
    return Result(130, None, told)


def _open_folder(job: Job, record: Mapping[str, Any] | None, most: int) -> Path | None:
    """Write down what is run, unless it is over; return its last checkpoint, if there is one."""
    if record is None:
        shutil.rmtree(job.folder, ignore_errors=True)
    found = sorted(job.folder.glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    while found and not (found[-1] / "trainer_state.json").is_file():
        shutil.rmtree(found.pop())  # cut off: the Trainer writes its state last
    last = found[-1] if found else None
    if record is not None and last is not None:
        _check_open(job, last, record["settings"], most)
    start = {"start": asdict(job.run.start), "day": job.run.loaded.day.isoformat()}
    write_json(job.folder / "run.json", {"settings": job.settings, **start})
    return last


def _publish(job: Job, checks: Checks) -> Result:
    """Save the model, ask what was saved, and write the report."""
    given, loaded = job.given, job.run.loaded
    try:
        check_trained(loaded.model, loaded.rows("forget")[0])
    except Refusal as refusal:
        shutil.rmtree(job.folder, ignore_errors=True)
        raise Refusal(f"{refusal} Nothing was saved. Would a smaller --lr do?") from refusal
    after = _save(job)
    job.run.say(checks.ending)
    content = job.run.content(f"Unlearning {Path(given.model).name}", job.settings, checks, after)
    content |= {"files": [MODEL, *REPORTS]}
    shown = report.publish(given.output, content, job.began, loaded.place.description())
    told = " ".join([*job.run.start.notes, f"{given.output}: {MODEL}, {', '.join(REPORTS)}."])
    if not content["verdict"]["missed"]:
        shutil.rmtree(job.folder, ignore_errors=True)
    else:
        told += f" {job.folder} is kept: with more --steps {job.rerun} goes on. It may be deleted."
    return Result(content["verdict"]["code"], shown, told)


def _check_open(job: Job, last: Path, was: Mapping[str, Any], most: int) -> None:
    """Raise `Refusal` for an ended run whose limits have not changed."""
    state = json.loads((last / "trainer_state.json").read_text(encoding="utf-8"))
    step, ended = state["global_step"], state["stateful_callbacks"][KEY]["ended"]
    if step >= most or (ended and all(was.get(k) == job.settings.get(k) for k in LIMITS)):
        raise Refusal(
            f"--output {job.given.output} holds a finished run of {step} of at most {most} steps: "
            f"{ended or LIMITED}; {job.given.output / REPORTS[0]} is its report. Did you mean "
            "other --steps, with which it goes on, another --output, or --force to begin anew?"
        )
    job.run.say(f"Going on after step {step} of {most}.")


def _save(job: Job) -> Measurement:
    """Save model (or adapters) and tokenizer, whole or not at all, and measure what was saved.

    The folder is loaded again, in place of what training took in memory, and measured before it
    takes its name. A model has the dtype that the original was stored in, adapters float32.
    """
    given, loaded = job.given, job.run.loaded
    model, tokenizer = loaded.model, loaded.tokenizer
    dtype = stored_dtype(given.model)
    if not given.lora:
        narrow((weight, dtype) for weight in model.parameters())

    def fill(draft: Path) -> Measurement:
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        model.to("cpu")  # so that a GPU has to hold one of the two
        return measure(load_for(given, str(draft), loaded.entries, day=loaded.day), "after")

    return write_folder(given.output / MODEL, fill)


def _collect_settings(given: argparse.Namespace, loaded: Setup) -> dict[str, Any]:
    """Return all settings that the weights of a run depend on."""
    told = {k: v for k, v in vars(given).items() if k not in UNTOLD}
    rows = {name: [row["input_ids"] for row in loaded.rows(name)] for name in loaded.sets}
    digest = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
    told |= {"weights": fingerprint(loaded.model), "rows in tokens": digest}
    return json.loads(json.dumps(told, default=str))
