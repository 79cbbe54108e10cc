"""`torch-alm unlearn`: from a model and two files to a model that forgot, and a report of it."""

import argparse
import hashlib
import json
import resource
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch

from torch_alm.command import report
from torch_alm.command.adapters import save_merged, with_adapters
from torch_alm.command.goal import (
    Goal,
    by_row,
    goal_of,
    is_known,
    judge,
    uniform,
    with_unseen_words,
)
from torch_alm.command.loading import Loaded, encode_entries, format_of, load_for, read_files
from torch_alm.command.model import (
    check_answers,
    check_finite,
    freeze_below,
    positions_of,
    quiet,
    stored_as,
    stored_dtype,
    trainable,
)
from torch_alm.command.output import (
    MODEL,
    REPORTS,
    UNFINISHED,
    Output,
    Refusal,
    write_folder,
    write_json,
)
from torch_alm.command.report import Result
from torch_alm.command.rows import Entry, read_entries
from torch_alm.command.train import (
    COSTLY,
    LORA_LR,
    LR,
    RAISED,
    Checks,
    Look,
    Pace,
    asked_to_stop,
    spread,
    trace_of,
    trainer_of,
)
from torch_alm.language import Row, prompt_ids

Say = Callable[[str], None]

GENERAL = Path(__file__).with_name("general.txt")
LENGTH = ("steps", "epochs", "max_retain_loss", "max_probe_loss", "save_every", "report_to")
"""Options of which a run may be given others than it began with."""
UNTOLD = ("verb", "config", "output", "force", "json", "quiet", "dry_run")
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SHOWN = 300  # characters of a prompt: its end, where a format goes wrong


@dataclass
class Start:
    """The model as it is, and the goal; what a run that is taken up again finds written down."""

    measured: dict[str, Any]
    known: bool
    goal: Goal
    notes: list[str]


def unlearn(given: argparse.Namespace, say: Say) -> Result:
    """Run, or go on with, what was asked; the code says how it ended, 130 that it was stopped."""
    begun = datetime.now(timezone.utc)
    found = read_files(given)
    output = Output(given.output, (MODEL, *REPORTS))
    record = _record(given) if not given.force else None
    output.check([given.model], force=given.force or record is not None)
    loaded = load_for(given, given.model, found, lora=given.lora)
    settings = _settings(given, loaded)
    if record is None:
        start, found, loaded = _begun(given, loaded, found, say)
    else:
        _check_same(given, record["settings"], settings)
        kept = record["start"]
        start = Start(kept["measured"], kept["known"], Goal(**kept["goal"]), kept["notes"])
        found = _as_said(given, found, start.measured) if given.answers == "said" else found
        loaded = replace(loaded, sets=_encoded(given, loaded, found))
    if given.gradient_checkpointing:
        _recompute(loaded)
    if given.lora:
        torch.manual_seed(given.seed)
        loaded = replace(loaded, model=with_adapters(given, loaded.model))
    else:
        freeze_below(loaded.model, given.layers)
    with TemporaryDirectory() as nowhere:  # a Trainer makes its folder at once
        folder = Path(nowhere) if given.dry_run else given.output
        trainer, checks = _prepared(given, loaded, start, folder, say)
    for line in (*_known_now(start, loaded, trainer), *start.notes):
        say(line)
    if given.dry_run:
        return Result(0, None, "A dry run: nothing was written.")
    if record is None:
        shutil.rmtree(given.output / UNFINISHED, ignore_errors=True)
        kept = {"settings": settings, "start": asdict(start)}
        write_json(given.output / UNFINISHED / "run.json", kept)
    return _carried_out(given, loaded, found, start, trainer, checks, settings, begun, say)


def _begun(
    given: argparse.Namespace, loaded: Loaded, found: dict[str, list[Entry]], say: Say
) -> tuple[Start, dict[str, list[Entry]], Loaded]:
    """Measure the model as it is.

    Raises:
        Refusal: it says too little of what it shall forget, or the goal is reached already.
    """
    measured = loaded.measured(given.rows, "before")
    known = _check_known(given, loaded, measured, say)
    if given.answers == "said":
        found = _as_said(given, found, measured)
        loaded = replace(loaded, sets=_encoded(given, loaded, found))
        measured = loaded.measured(given.rows, "as said")
    goal = with_unseen_words(goal_of(given, loaded), measured["numbers"].get("holdout"))
    notes = [_beyond(goal, loaded)] if goal.kind != "rate" and goal.alpha > uniform(loaded) else []
    if not given.anyway:
        _check_unreached(goal, measured)
    return Start(measured, known, goal, notes), found, loaded


def _check_known(
    given: argparse.Namespace, loaded: Loaded, measured: Mapping[str, Any], say: Say
) -> bool:
    """Tell whether the model says at least half of the forget answers; refuse if not."""
    answers = measured["answers"]["forget"]
    rows = by_row(answers)
    known = [is_known(row) for row in rows]
    if sum(known) >= 0.5 * len(rows):
        return True
    missed = [i for i, answer in enumerate(answers) if not is_known([answer])][:3]
    for i in missed:
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
        f"asked the forget rows, the model says {sum(known)} of {len(rows)} forget answers "
        f"({exact} of them word for word; {words:.0%} of all words). What is not said cannot be "
        "seen to go, and the goal would be met without anything forgotten; --anyway goes on, and "
        "then it never counts as met. Was the model taught in another format (--template, "
        "--system, rows of prompt and completion), or is it another model?"
    )


def _check_unreached(goal: Goal, measured: Mapping[str, Any]) -> None:
    """Refuse a goal that a model reaches which says the answers: nothing would push."""
    numbers, answers = measured["numbers"]["forget"], measured["answers"]["forget"]
    every = replace(goal, kind="rows") if goal.kind == "loss" else goal
    if every.holds(numbers, answers):
        raise Refusal(
            f"the goal holds before the first step ({goal.told}), and yet the model says "
            f"{numbers['said']:.0%} of the answers: it says them in other words than the rows, so "
            "that nothing would be forgotten. Did you mean --answers said, which forgets what the "
            "model itself says?"
        )


def _beyond(goal: Goal, loaded: Loaded) -> str:
    most = uniform(loaded)
    return (
        f"The level of {goal.alpha:.2f} nats per token ({goal.source}) is above {most:.2f}, the "
        "loss of a model that knows nothing and guesses: it has to be sure of other answers, which "
        f"costs what shall be kept. Did you mean --alpha {0.9 * most:.1f} or less?"
    )


def _as_said(
    given: argparse.Namespace, found: dict[str, list[Entry]], measured: Mapping[str, Any]
) -> dict[str, list[Entry]]:
    """The files with the forget answers as the model says them, to the end of their paragraph."""
    said = {a["where"]: a["answer"].strip() for a in measured["answers"]["forget"] if a["said"]}
    rows = [e.answered(said[e.where].split("\n")[0]) if said.get(e.where) else e
            for e in found["forget"]]  # fmt: skip
    return {**found, "forget": rows}


def _encoded(
    given: argparse.Namespace, loaded: Loaded, found: Mapping[str, Sequence[Entry]]
) -> dict[str, Any]:
    longest, form = min(given.max_length, positions_of(loaded.model)), format_of(given)
    return {k: encode_entries(loaded.tokenizer, rows, longest, form) for k, rows in found.items()}


def _retained(given: argparse.Namespace, loaded: Loaded, start: Start) -> list[Row]:
    """The rows that are trained to be kept, in the model's own words where those hold the answer.

    So there is little to learn from them, and what nobody listed moves less.
    """
    answers = {a["where"]: a for a in start.measured["answers"]["retain"]}
    longest, form = min(given.max_length, positions_of(loaded.model)), format_of(given)
    rows: list[Row] = []
    for entry, row in loaded.sets["retain"]:
        told = answers.get(entry.where, {"said": False})
        own = told["answer"].strip().split("\n\n")[0] if told["said"] else ""
        if own and not told["verbatim"] and len(own) < 4 * len(entry.answer) + 100:
            rows += [r for _, r in encode_entries(
                loaded.tokenizer, [entry.answered(own)], longest, form)]  # fmt: skip
        else:
            rows.append(row)
    if given.general is not None:
        path = GENERAL if str(given.general) == "builtin" else given.general
        texts = read_entries(path, "general", given.columns)
        rows += [row for _, row in encode_entries(loaded.tokenizer, texts, longest, form)]
    return rows


def _recompute(loaded: Loaded) -> None:
    """Have the layers computed a second time in the backward pass; refuse if they cannot be."""
    if not loaded.model.supports_gradient_checkpointing:
        raise Refusal(
            f"--gradient-checkpointing, and {type(loaded.model).__name__} cannot compute its "
            "layers a second time. Did you mean --accumulate, with a smaller --batch-size?"
        )
    with quiet():  # it is to be called otherwise one day, and cannot yet in transformers 4
        loaded.model.gradient_checkpointing_enable({"use_reentrant": False})


def _prepared(
    given: argparse.Namespace, loaded: Loaded, start: Start, folder: Path, say: Say
) -> tuple[Any, Checks]:
    """The Trainer of the run, with the checks that pace and end it."""
    goal, before = start.goal, start.measured["numbers"]["retain"]["loss"]
    forget = loaded.rows("forget") if goal.kind == "rate" else loaded.scored("forget")
    kept = loaded.rows("retain")
    trainer = trainer_of(given, loaded, goal, (forget, _retained(given, loaded, start)), folder)
    look = Look(
        loaded,
        goal,
        [forget[i] for i in spread(len(forget))],
        [kept[i] for i in spread(min(given.rows, len(kept)))],
        [loaded.scored("probe")[i] for i in spread(len(loaded.rows("probe")))],
        (0.1 if given.max_retain_loss is None else given.max_retain_loss - before,
         given.max_probe_loss),
    )  # fmt: skip

    def ask() -> str:
        now = loaded.measured(given.rows, "asking")
        found = _judged(given, start, now, known=True)
        return "" if found.outcome == "met" else ", ".join(found.missed) or COSTLY

    rate = given.lr or (LORA_LR if given.lora else LR)
    aim = goal.alpha if goal.kind == "rate" else RAISED * goal.alpha
    pace = Pace(goal.alpha, aim, rate, fixed=given.lr is not None)
    checks = Checks(look, pace, trainer.constraint, given.save_every, ask, say)
    trainer.add_callback(checks)
    return trainer, checks


def _judged(given: argparse.Namespace, start: Start, now: Mapping[str, Any], *, known: bool) -> Any:
    return judge(
        start.goal,
        start.measured,
        now,
        max_retain_loss=given.max_retain_loss,
        max_probe_loss=given.max_probe_loss,
        known_before=known,
    )


def _known_now(start: Start, loaded: Loaded, trainer: Any) -> list[str]:
    """Four lines: what the model says, how well it knows it, the goal, and what a step takes."""
    numbers, rows = start.measured["numbers"], start.measured["answers"]
    said = {k: f"{sum(a['said'] for a in v)} of {len(v)}" for k, v in rows.items()}
    probe = f", {said['probe']} probe answers" if "probe" in said else ", and there is no probe"
    steps = trainer.args.max_steps
    seconds, memory = _step_taken(loaded, trainer)
    return [
        f"Now it says {said['forget']} forget answers, {said['retain']} retain answers{probe}.",
        f"Loss: {numbers['forget']['gold']:.2f} nats per telling token of the forget answers, "
        f"{numbers['retain']['loss']:.2f} per token of the retain answers.",
        f"Goal: {start.goal.told}.",
        f"A step takes about {seconds:.2g} s and {memory / 1e9:.1f} GB; at most {steps} are taken.",
    ]


def _step_taken(loaded: Loaded, trainer: Any) -> tuple[float, float]:
    """Seconds and bytes of a step: both passes are tried once, and the optimizers are added."""
    size = trainer.args.per_device_train_batch_size
    pairs = [trainer.train_dataset[i] for i in range(min(size, len(trainer.train_dataset)))]
    batch = trainer._prepare_inputs(trainer.data_collator(pairs))
    begun = perf_counter()
    state = torch.get_rng_state()
    with loaded.place.context():
        trainer.retain_objective(loaded.model, batch["retain"]).backward()
        found = trainer.forget_objective(loaded.model, batch["forget"])
        (found[0] if isinstance(found, tuple) else found).backward()
    loaded.model.zero_grad()
    torch.set_rng_state(state)
    passes = trainer.args.gradient_accumulation_steps * (2 if getattr(trainer, "rho", 0) else 1)
    moments = 4 * 4 * sum(p.numel() for p in trainable(loaded.model).values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak *= 1 if sys.platform == "darwin" else 1024
    if loaded.place.device == "cuda":
        peak = torch.cuda.max_memory_allocated()
    return (perf_counter() - begun) * passes, float(peak + moments)


def _carried_out(
    given: argparse.Namespace,
    loaded: Loaded,
    found: Mapping[str, Sequence[Entry]],
    start: Start,
    trainer: Any,
    checks: Checks,
    settings: Mapping[str, Any],
    begun: datetime,
    say: Say,
) -> Result:
    folder = given.output / UNFINISHED
    last = max(folder.glob("checkpoint-*"), key=lambda p: int(p.name[11:]), default=None)
    if last is not None:
        _check_more(given, last, trainer.args.max_steps, say)
    with quiet(), asked_to_stop(checks.stop):
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
    step, most = trainer.state.global_step, trainer.args.max_steps
    same = f"the same command{' without --force' * given.force}"
    if checks.is_stopped:
        told = f"Stopped after step {step} of {most}; all of it is kept, and {same} goes on."
        return Result(130, None, told)
    loaded.model.eval()
    _check_trained(given, loaded)
    after = _saved(given, loaded, found)
    verdict = _judged(given, start, after, known=start.known)
    ended = checks.pace.ended or "no more steps were allowed"
    notes = [*start.notes, f"Ended after {step} of at most {most} steps: {ended}."]
    say(notes[-1])
    content = report.unlearned(
        given, settings, start, after, verdict, trace_of(trainer.state.log_history), notes
    )
    shown = report.publish(given.output, content, begun, loaded.place.described())
    told = f"{given.output}: {MODEL}, {', '.join(REPORTS)}."
    if verdict.code == 0:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        told += f" {folder} is kept: with more --steps {same} goes on. It may be deleted."
    return Result(verdict.code, shown, told)


def _check_more(given: argparse.Namespace, last: Path, most: int, say: Say) -> None:
    state = json.loads((last / "trainer_state.json").read_text())
    if state["global_step"] >= most:
        raise Refusal(
            f"--output {given.output} holds a run that is through after {state['global_step']} of "
            f"at most {most} steps. Did you mean a --steps above {most}, which goes on with it, or "
            "--force to begin anew?"
        )
    say(f"Going on after step {state['global_step']} of {most}.")


def _check_trained(given: argparse.Namespace, loaded: Loaded) -> None:
    try:
        check_finite("the trained model", loaded.model)
        check_answers("the trained model", loaded.model, loaded.rows("forget")[0])
    except Refusal as refusal:
        shutil.rmtree(given.output / UNFINISHED, ignore_errors=True)
        raise Refusal(f"{refusal} Nothing was saved. Would a smaller --lr do?") from refusal


def _saved(
    given: argparse.Namespace, loaded: Loaded, found: Mapping[str, Sequence[Entry]]
) -> dict[str, Any]:
    """Save model (or adapters) and tokenizer, whole or not at all, and ask what was saved.

    The model in memory is not what anybody will use: the folder is loaded again and measured before
    it takes its name. A model has the dtype that the original was stored in, adapters float32.
    """
    dtype, model = stored_dtype(given.model), loaded.model

    def fill(draft: Path) -> dict[str, Any]:
        with quiet():
            if given.merge:
                save_merged(model, loaded.tokenizer, draft, dtype)
            else:
                with nullcontext() if given.lora else stored_as(model, dtype):
                    model.save_pretrained(draft)
                loaded.tokenizer.save_pretrained(draft)
        model.to("cpu")  # so that a GPU has to hold one of the two
        return load_for(given, str(draft), found).measured(given.rows, "after")

    return write_folder(given.output / MODEL, fill)


def _settings(given: argparse.Namespace, loaded: Loaded) -> dict[str, Any]:
    """All that the weights of a run depend on."""
    told = {k: v for k, v in vars(given).items() if k not in UNTOLD}
    told |= {"weights": fingerprint(loaded.model), "rows in tokens": _digest(loaded)}
    return json.loads(json.dumps(told, default=str))


def fingerprint(model: Any) -> str:
    """Sixteen digits that change with any weight: one exact sum of bits per tensor, hashed.

    Cost: one pass over the weights, wherever they are.
    """
    found = hashlib.sha256(model.config.to_json_string().encode())
    for name, p in model.named_parameters():
        bits = p.detach().contiguous().view(BITS[p.element_size()])
        found.update(f"{name} {tuple(p.shape)} {int(bits.sum(dtype=torch.int64))}".encode())
    return found.hexdigest()[:16]


def _digest(loaded: Loaded) -> str:
    rows = {name: [row["input_ids"] for row in loaded.rows(name)] for name in loaded.sets}
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


def _record(given: argparse.Namespace) -> dict[str, Any] | None:
    """What an earlier run has written down, if there is one in the output folder."""
    path = given.output / UNFINISHED / "run.json"
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {"settings": found["settings"], "start": found["start"]}
    except (ValueError, KeyError) as error:
        raise Refusal(f"{path} cannot be read. Was it changed? --force begins anew.") from error


def _check_same(given: argparse.Namespace, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    different = [k for k in {**was, **now} if k not in LENGTH and was.get(k) != now.get(k)]
    if different:
        told = "; ".join(f"{k} was {was.get(k)!r} and is now {now.get(k)!r}" for k in different[:3])
        raise Refusal(
            f"--output {given.output} holds a run of other settings: {told}. Did you mean another "
            "folder, or --force to begin anew?"
        )
