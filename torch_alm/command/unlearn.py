"""`torch-alm unlearn`: from a model and two files to a model that forgot, and a report of it."""

import argparse
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from torch_alm.command import report
from torch_alm.command.adapters import with_adapters
from torch_alm.command.asking import measured
from torch_alm.command.checks import Checks, Look, checks_of
from torch_alm.command.goal import (
    Goal,
    Verdict,
    by_row,
    goal_of,
    is_known,
    judge,
    uniform,
    with_unseen_words,
)
from torch_alm.command.loading import Loaded, as_said, kept_rows, load_for, read_files, with_rows
from torch_alm.command.model import (
    check_answers,
    check_finite,
    fingerprint,
    freeze_below,
    stored_dtype,
)
from torch_alm.command.output import (
    MODEL,
    REPORTS,
    UNFINISHED,
    Refusal,
    check_output,
    check_same,
    read_record,
    write_folder,
    write_json,
    written,
)
from torch_alm.command.report import Result
from torch_alm.command.rows import Entry
from torch_alm.command.spoken import Wordings, in_own_words
from torch_alm.command.train import (
    asked_to_stop,
    check_reporter,
    known_now,
    trace_of,
    trainer_of,
)
from torch_alm.language import prompt_ids

Say = Callable[[str], None]

LIMITS = ("steps", "epochs", "max_retain_loss")
"""Options of which others let a run go on that came to its end."""
FREE = (*LIMITS, "max_probe_loss", "save_every", "report_to")
"""Options of which a run may be given others than it began with."""
LIMITED = "no more steps were allowed"
UNTOLD = ("verb", "config", "output", "force", "json", "quiet", "dry_run")
SHOWN = 300  # characters of a prompt: its end, where a format goes wrong


@dataclass
class Start:
    """The model as it is, and the goal; what a run that is taken up again finds written down."""

    measured: dict[str, Any]
    known: bool
    goal: Goal
    notes: list[str]


@dataclass
class Run:
    """A request, the rows read for it, and the beginning of its run."""

    given: argparse.Namespace
    say: Say
    found: dict[str, list[Entry]]
    loaded: Loaded
    settings: dict[str, Any]
    start: Start

    @property
    def folder(self) -> Path:
        """The folder of all that the run needs to go on."""
        return self.given.output / UNFINISHED

    @property
    def same(self) -> str:
        """The command with which it goes on."""
        return f"the same command{' without --force' * self.given.force}"

    def judged(self, now: Mapping[str, Any]) -> Verdict:
        """The verdict on another measurement."""
        return judge(
            self.start.goal,
            self.start.measured,
            now,
            max_retain_loss=self.given.max_retain_loss,
            max_probe_loss=self.given.max_probe_loss,
            known_before=self.start.known,
        )


def unlearn(given: argparse.Namespace, say: Say) -> Result:
    """Run, or go on with, what was asked; the code says how it ended, 130 that it was stopped."""
    begun = datetime.now(timezone.utc)
    found = read_files(given)
    record = None if given.force else read_record(given.output / UNFINISHED)
    replaces = given.force or record is not None
    check_output(given.output, (MODEL, *REPORTS), [given.model], force=replaces)
    check_reporter(given.report_to)
    loaded = load_for(given, given.model, found, lora=given.lora)
    if not given.lora:
        freeze_below(loaded.model, given.layers)
    settings = _settings(given, loaded)
    if record is None:
        start, found, loaded = _begun(given, loaded, found, say)
    else:
        check_same(given.output, record["settings"], settings, FREE)
        kept = record["start"]
        start = Start(kept["measured"], kept["known"], Goal(**kept["goal"]), kept["notes"])
        found = as_said(found, start.measured) if given.answers == "said" else found
        loaded = with_rows(given, loaded, found)
    loaded = _made_trainable(given, loaded)
    run = Run(given, say, found, loaded, settings, start)
    with TemporaryDirectory() as nowhere:  # a Trainer makes its folder at once
        trainer, checks = _prepared(run, Path(nowhere) if given.dry_run else given.output)
    lines, planned = known_now(given, loaded, trainer, start.goal, start.measured)
    lines += start.notes
    if given.dry_run:
        return Result(0, None, "\n".join([*lines, "A dry run: nothing was written."]), planned)
    for line in lines:
        say(line)
    return _carried_out(run, trainer, checks, record, begun)


def _begun(
    given: argparse.Namespace, loaded: Loaded, found: dict[str, list[Entry]], say: Say
) -> tuple[Start, dict[str, list[Entry]], Loaded]:
    """Measure the model as it is.

    Raises:
        Refusal: it says too little of what it shall forget, or the goal is reached already.
    """
    found_now = measured(loaded, given.rows, "before", whole=given.answers == "said")
    known = _check_known(given, loaded, found_now, say)
    _check_unseen(found_now["numbers"].get("holdout"))
    if given.answers == "said":
        found = as_said(found, found_now)
        loaded = with_rows(given, loaded, found)
        found_now = measured(loaded, given.rows, "as said")
    goal = with_unseen_words(goal_of(given, loaded), found_now["numbers"].get("holdout"))
    notes = [_beyond(goal, loaded)] if goal.kind != "rate" and goal.alpha > uniform(loaded) else []
    if not given.anyway:
        _check_unreached(goal, found_now)
    return Start(found_now, known, goal, notes), found, loaded


def _check_known(
    given: argparse.Namespace, loaded: Loaded, measured: Mapping[str, Any], say: Say
) -> bool:
    """Tell whether the model says at least half of the forget answers; refuse if not."""
    answers = measured["answers"]["forget"]
    known = [is_known(row) for row in by_row(answers)]
    if sum(known) >= 0.5 * len(known):
        return True
    for i in [i for i, answer in enumerate(answers) if not is_known([answer])][:3]:
        entry, row = loaded.sets["forget"][i]
        literal = loaded.tokenizer.decode(prompt_ids(row))
        asked = (answers[i]["prompt"] if entry.is_text else literal)[-SHOWN:]
        say(
            f"{answers[i]['where']}\n  asked  {asked!r}\n  says   {answers[i]['answer']!r}\n"
            f"  should {answers[i]['reference']!r}"
        )
    if given.anyway:
        return False
    exact = sum(a["exact_match"] for a in answers)
    words = measured["numbers"]["forget"]["rouge"]
    raise Refusal(
        f"asked the forget rows, the model says {sum(known)} of {len(known)} forget answers "
        f"({exact} of them word for word; {words:.0%} of all words). What is not said cannot be "
        "seen to go, and the goal would be met without anything forgotten; --anyway goes on, and "
        "then it never counts as met. Was the model taught in another format (--template, "
        "--system, rows of prompt and completion), or is it another model?"
    )


def _check_unseen(numbers: Mapping[str, float] | None) -> None:
    """Refuse rows never seen that the model says: their loss would be a goal too low to forget."""
    if numbers is not None and numbers["said"] > 0.5:
        raise Refusal(
            f"--holdout: the model says {numbers['said']:.0%} of its answers, so it has seen them, "
            "and the goal would be to forget no more than that. Is it the right file?"
        )


def _check_unreached(goal: Goal, measured: Mapping[str, Any]) -> None:
    """Refuse a goal that a model reaches which says the answers: nothing would push."""
    numbers, answers = measured["numbers"]["forget"], measured["answers"]["forget"]
    every = replace(goal, kind="rows", least=None) if goal.kind != "rate" else goal
    if every.holds(numbers, answers):
        raise Refusal(
            f"the goal holds before the first step ({goal.told}; the model is at "
            f"{goal.value(numbers):.2g}), and yet the model says {numbers['said']:.0%} of the "
            "answers: nothing would be forgotten. Did you mean a higher goal, or, if it says them "
            "in other words than the rows, --answers said?"
        )


def _beyond(goal: Goal, loaded: Loaded) -> str:
    most = uniform(loaded)
    return (
        f"The level of {goal.alpha:.2f} nats per token ({goal.source}) is above {most:.2f}, the "
        "loss of a model that knows nothing and guesses: it has to be sure of other answers, which "
        f"costs what shall be kept. Did you mean --alpha {0.9 * most:.1f} or less?"
    )


def _made_trainable(given: argparse.Namespace, loaded: Loaded) -> Loaded:
    """The model with the weights, or adapters, that are to move."""
    if given.gradient_checkpointing:
        loaded.model.gradient_checkpointing_enable({"use_reentrant": False})
    if given.lora:
        torch.manual_seed(given.seed)
        return replace(loaded, model=with_adapters(loaded.model))
    return loaded


def _prepared(run: Run, folder: Path) -> tuple[Any, Checks]:
    """The Trainer of the run, with the checks that pace and end it."""
    given, loaded, start = run.given, run.loaded, run.start
    answers = start.measured["answers"]
    wordings = Wordings(given, loaded, start.goal, answers["forget"])
    probe = in_own_words(given, loaded, "probe", answers.get("probe", []))
    kept = kept_rows(given, loaded, start.measured)
    trainer = trainer_of(given, loaded, start.goal, (wordings.rows, kept), folder)
    before = start.measured["numbers"]["retain"]["loss"]

    def ask() -> tuple[Verdict, bool]:
        verdict, answers = _asked(run)
        return verdict, wordings.take(answers)

    look = Look(loaded, start.goal, wordings, probe, given.rows)
    checks = checks_of(given, look, before, trainer, ask, run.say)
    trainer.add_callback(checks)
    return trainer, checks


def _asked(run: Run) -> tuple[Verdict, list[dict[str, Any]]]:
    """The verdict on the model, and its forget answers; the others are asked once they are gone."""
    known, found = replace(run, start=replace(run.start, known=True)), run.start.measured
    for names in (("forget",), ("retain", "probe")):
        now = measured(run.loaded, run.given.rows, "asking", names)
        found = {part: {**found[part], **now[part]} for part in now}
        if (verdict := known.judged(found)).missed:
            break
    return verdict, found["answers"]["forget"]


def _carried_out(
    run: Run, trainer: Any, checks: Checks, record: Mapping[str, Any] | None, begun: datetime
) -> Result:
    """Train from the last checkpoint on, save the model, ask what was saved, publish it."""
    if record is None:
        shutil.rmtree(run.folder, ignore_errors=True)
    found = sorted(run.folder.glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    while found and not (found[-1] / "trainer_state.json").is_file():
        shutil.rmtree(found.pop())  # cut off: the Trainer writes its state last
    last = found[-1] if found else None
    if record is not None and last is not None:
        _check_open(run, last, record["settings"], trainer.args.max_steps)
    write_json(run.folder / "run.json", {"settings": run.settings, "start": asdict(run.start)})
    with asked_to_stop(checks.stop):
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
    step, most = trainer.state.global_step, trainer.args.max_steps
    if checks.is_stopped:
        told = f"Stopped after step {step} of {most}; all of it is kept, and {run.same} goes on."
        return Result(130, None, told)
    run.loaded.model.eval()
    _check_trained(run)
    after = _saved(run)
    ended = f"Ended after {step} of at most {most} steps: {checks.pace.ended or LIMITED}."
    run.say(ended)
    return _published(run, after, trace_of(trainer.state.log_history), ended, begun)


def _published(
    run: Run, after: Mapping[str, Any], trace: list[dict[str, float]], ended: str, begun: datetime
) -> Result:
    given, start, verdict = run.given, run.start, run.judged(after)
    content = report.content_of(
        f"Unlearning {Path(given.model).name}",
        f"{given.method}, {len(trace)} steps. Goal: {start.goal.told}.",
        {**run.settings, "known_before": start.known},
        goal=asdict(start.goal),
        verdict=asdict(verdict),
        models=[{"name": "before", **start.measured}, {"name": "after", **after}],
        trace=trace,
        notes=[*start.notes, ended],
        files=written(given.output, (MODEL, *REPORTS)),
    )
    shown = report.publish(given.output, content, begun, run.loaded.place.described())
    told = " ".join([*start.notes, f"{given.output}: {MODEL}, {', '.join(REPORTS)}."])
    if not verdict.missed:
        shutil.rmtree(run.folder, ignore_errors=True)
    else:
        told += f" {run.folder} is kept: with more --steps {run.same} goes on. It may be deleted."
    return Result(verdict.code, shown, told)


def _check_open(run: Run, last: Path, was: Mapping[str, Any], most: int) -> None:
    """Refuse to go on with a run that came to its end, and may do no more than it might then."""
    state = json.loads((last / "trainer_state.json").read_text(encoding="utf-8"))
    step, ended = state["global_step"], Checks.ended_of(state)
    if step >= most or (ended and all(was.get(k) == run.settings.get(k) for k in LIMITS)):
        raise Refusal(
            f"--output {run.given.output} holds a finished run of {step} of at most {most} steps: "
            f"{ended or LIMITED}; {run.given.output / REPORTS[0]} is its report. Did you mean "
            "other --steps, with which it goes on, another --output, or --force to begin anew?"
        )
    run.say(f"Going on after step {step} of {most}.")


def _check_trained(run: Run) -> None:
    try:
        check_finite("the trained model", run.loaded.model)
        check_answers("the trained model", run.loaded.model, run.loaded.rows("forget")[0])
    except Refusal as refusal:
        shutil.rmtree(run.folder, ignore_errors=True)
        raise Refusal(f"{refusal} Nothing was saved. Would a smaller --lr do?") from refusal


def _saved(run: Run) -> dict[str, Any]:
    """Save model (or adapters) and tokenizer, whole or not at all, and ask what was saved.

    The model in memory is not what anybody will use: the folder is loaded again and measured before
    it takes its name. A model has the dtype that the original was stored in, adapters float32.
    """
    given, model, tokenizer = run.given, run.loaded.model, run.loaded.tokenizer
    dtype = stored_dtype(given.model)
    for weight in () if given.lora else model.parameters():
        weight.data = weight.data.to(dtype)

    def fill(draft: Path) -> dict[str, Any]:
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        model.to("cpu")  # so that a GPU has to hold one of the two
        return measured(load_for(given, str(draft), run.found), given.rows, "after")

    return write_folder(given.output / MODEL, fill)


def _settings(given: argparse.Namespace, loaded: Loaded) -> dict[str, Any]:
    """All that the weights of a run depend on."""
    told = {k: v for k, v in vars(given).items() if k not in UNTOLD}
    rows = {name: [row["input_ids"] for row in loaded.rows(name)] for name in loaded.sets}
    digest = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
    told |= {"weights": fingerprint(loaded.model), "rows in tokens": digest}
    return json.loads(json.dumps(told, default=str))
