"""The run: a Trainer of the library, and the checks between its steps that pace and end it."""

import argparse
import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Any, cast

from torch import Tensor
from transformers import PrinterCallback, TrainerCallback, TrainingArguments

from torch_alm import ALMConstraint
from torch_alm.command.goal import TAU, Goal
from torch_alm.command.loading import Loaded
from torch_alm.command.output import UNFINISHED
from torch_alm.integrations.transformers import (
    ALMTrainer,
    PairedCollator,
    PairedDataset,
    SAULTrainer,
)
from torch_alm.language import IGNORE, Row, answer_scores, losses, pad_id
from torch_alm.measures import npo_of_logits, simnpo_of_logits
from torch_alm.rules import Leak

STEPS, EPOCHS = 1000, 10  # of a run whose length was not given, whichever is more
LR, LORA_LR = 1e-5, 1e-4  # where a run begins whose rate was not given
RHO, BETAS = 1e-3, {"npo": 0.1, "simnpo": 4.5}
EVERY = 10  # steps between two checks
SAMPLE = 64  # rows of a kind that a check reads, spread evenly over the file
FACTOR = 2.0  # by which the rate rises and falls
MOST = 1e-2  # rate: beyond it AdamW breaks what it shall keep
PROGRESS = 0.05  # of the level: less between two checks is none
PATIENCE = 25  # checks without a smaller gap, and the run is given up
SMALLER = 0.01  # by how much a gap has to shrink to be a smaller one
COSTLY = "at a cost"  # a goal that is met so ends the run once the cost no longer shrinks
RAISED = 1.1  # times the level is aimed at, so that a row ends above it
KEY = "torch_alm.command"  # of the pace in `trainer_state.json`


@dataclass
class Pace:
    """The rule of a run: measured numbers in, a rate and a decision out.

    A retain loss above its limit, unless it falls, halves the rate, and forgetting rests; probe
    rows lost beyond theirs halve it, too; a forget value that rose by less than a twentieth of the
    level doubles it, to 0.01 at most. Once the level is reached and the retain loss within its
    limit, the model is to be asked; after each time that it fails, at twice as many checks in a
    row. The gap is what is missing of the level, as a share of it, plus what the retain loss has
    too much, in nats; 25 checks without a smaller one, or a number that is not finite, and the run
    is given up. A rate that is given stays, and the run is not given up.

    Attributes:
        alpha: the level that the forget value shall reach.
        aim: the level that training aims at.
        rate: the learning rate.
        fixed: whether the rate stays as it is.
        ended: why the run is over; empty while it is not.
    """

    alpha: float
    aim: float
    rate: float
    fixed: bool
    value: float = 0.0
    excess: float = 0.0
    lost: float = 0.0
    needed: int = 1
    held: int = 0
    gap: float = math.inf
    cost: float = math.inf
    stalled: int = 0
    ended: str = ""

    def check(self, value: float, excess: float, lost: float, *, reached: bool) -> str:
        """Take in numbers, set the rate, and tell what follows; `"ask"` asks for asking the model.

        Args:
            value: the forget value.
            excess: the retain loss beyond its limit, in nats.
            lost: the share of the probe rows lost beyond its limit.
            reached: whether the level is.
        """
        gained, worse = value - self.value, excess - self.excess
        more_lost = lost > max(0.0, self.lost)
        self.value, self.excess, self.lost = value, excess, lost
        self.held = self.held + 1 if reached and excess <= 0 else 0
        if self.held >= self.needed:
            return "ask"
        if self._is_stalled() and not self.fixed:
            self.ended = "gave up: nothing has come nearer for long"
            return self.ended
        if self.fixed:
            return "goes on"
        if not excess <= 0:
            return "retain loss above its limit: forgetting rests" + self._slower(not worse < 0)
        if more_lost:
            return "probe rows are lost" + self._slower(True)
        if not reached and gained < PROGRESS * self.alpha and self.rate < MOST:
            self.rate = min(self.rate * FACTOR, MOST)
            return "forgetting is slow: the rate is doubled"
        return "goes on"

    def failed(self, is_said: bool) -> None:
        """Take in that the model was asked, and the goal not met: ask half as often.

        If too much is still said, aim higher.
        """
        self.held, self.needed = 0, 2 * self.needed
        if is_said:
            self.aim = (1 + self.aim) / 2 if self.aim <= 1 else RAISED * self.aim

    @property
    def target(self) -> float:
        """The aim of the steps to come: none while the retain rows have to catch up."""
        return 0.0 if self.excess > 0 and not self.fixed else self.aim

    def _slower(self, is_needed: bool) -> str:
        self.rate /= FACTOR if is_needed else 1.0
        return ", the rate is halved" if is_needed else ""

    def _is_stalled(self) -> bool:
        if not math.isfinite(self.value + self.excess):
            return True
        gap = max(0.0, 1 - self.value / self.alpha) + max(0.0, self.excess)
        self.stalled = 0 if gap < self.gap - SMALLER else self.stalled + 1
        self.gap = min(gap, self.gap)
        return self.stalled >= PATIENCE


class Objective:
    """The measure of a constraint over forget batches; of NPO and SimNPO a loss beside it."""

    def __init__(self, goal: Goal, method: str, beta: float | None) -> None:
        self.goal, self.method, self.aim = goal, method, goal.alpha
        self.beta = beta or BETAS.get(method, 0.0)

    def __call__(self, model: Any, batch: Any) -> Tensor | tuple[Tensor, Tensor]:
        """The value that is constrained, or (loss, value)."""
        inputs = {k: batch[k] for k in ("input_ids", "attention_mask")}
        logits, labels = model(**inputs, use_cache=False).logits, batch["labels"]
        value = self.goal.measure(logits, labels, self.aim)
        if self.method == "npo":
            reference: Tensor = batch["reference_nll"]
            return npo_of_logits(logits, labels, reference, beta=self.beta), value
        if self.method == "simnpo":
            return simnpo_of_logits(logits, labels, beta=self.beta), value
        return value


@dataclass
class Look:
    """Rows that a check reads, and what they were before the first step."""

    loaded: Loaded
    goal: Goal
    forget: list[Row]
    retain: list[Row]
    probe: list[Row]
    limits: tuple[float, float]

    def __post_init__(self) -> None:
        self.pad = pad_id(self.loaded.tokenizer)
        self.start = self.kept()
        self.known = [i for i, known in enumerate(self.exact(self.probe)) if known]

    def forgotten(self, aim: float) -> tuple[float, bool, int]:
        """The forget value, whether the level is reached, and how many rows are said by tokens."""
        scores = answer_scores(self.loaded.model, self.forget, self.pad, TAU)
        said = sum(score.exact_match for score in scores)
        if self.goal.kind == "rate":
            value = fmean(max(score.certificate, 0.0) for score in scores)
            return value, value >= self.goal.alpha, said
        loss = [score.loss for score in scores]
        least = fmean(loss) if self.goal.kind == "loss" else min(loss)
        return fmean(min(x, aim) for x in loss), least >= self.goal.alpha, said

    def kept(self) -> float:
        """The retain loss."""
        return fmean(losses(self.loaded.model, self.retain, self.pad))

    def exact(self, rows: Sequence[Row]) -> list[bool]:
        """Which rows are known token by token."""
        scores = answer_scores(self.loaded.model, rows, self.pad, TAU) if rows else []
        return [score.exact_match for score in scores]

    def lost(self) -> int:
        """How many probe rows are no longer known that were."""
        return sum(not known for known in self.exact([self.probe[i] for i in self.known]))


class Checks(TrainerCallback):
    """Checks between the steps: they print a line, set the rate and the aim, and end the run.

    Args:
        look: what is read.
        pace: the rule.
        constraint: whose alpha is the aim.
        minutes: between two checkpoints.
        ask: tells what stands against the verdict on the model as it is, `COSTLY` if it is met at a
            cost, and nothing if it is met.
        say: prints a line.
    """

    def __init__(
        self,
        look: Look,
        pace: Pace,
        constraint: ALMConstraint,
        minutes: float,
        ask: Callable[[], str],
        say: Callable[[str], None],
    ) -> None:
        self.look, self.pace, self.constraint = look, pace, constraint
        self.minutes, self.ask, self.say = minutes, ask, say
        self.stop: list[int] = []
        self.saved = monotonic()
        self.is_stopped = False

    def on_train_begin(
        self, args: TrainingArguments, state: Any, control: Any, **more: Any
    ) -> None:
        """Take up the pace of a checkpoint; a run that was over is open again."""
        if (found := state.stateful_callbacks.get(KEY)) is not None:
            self.pace = replace(Pace(**cast("dict[str, Any]", found)), ended="", stalled=0)
        self._set(more)

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **more: Any) -> None:
        """Check if it is time; save if it is time, or the run is stopped or over."""
        step = state.global_step
        if step % EVERY == 0:
            model = more["model"]
            model.eval()
            self._check(step)
            model.train()
            self._set(more)
        state.stateful_callbacks[KEY] = asdict(self.pace)
        over = bool(self.pace.ended) or step >= state.max_steps
        self.is_stopped = bool(self.stop) and not over
        is_late = monotonic() - self.saved > 60 * self.minutes
        if over or self.stop or is_late:
            control.should_save = self.pace.ended != "the goal is met"
            self.saved = monotonic()
        control.should_training_stop = control.should_training_stop or over or bool(self.stop)

    def _check(self, step: int) -> None:
        pace, look = self.pace, self.look
        before = pace.value
        value, reached, said = look.forgotten(pace.aim)
        kept, lost = look.kept(), look.lost()
        known, (most_loss, most_lost) = len(look.known), look.limits
        share = lost / known - most_lost if known else 0.0
        told = pace.check(value, kept - look.start - most_loss, share, reached=reached)
        if told == "ask":
            told = self._asked()
        unit = "certified" if look.goal.kind == "rate" else "nats"
        probe = f"; probe {known - lost} of {known}" if known else ""
        left = ceil((pace.alpha - value) / (value - before)) * EVERY if value > before else 0
        ahead = f" of about {step + left}" if 0 < left < STEPS and not pace.ended else ""
        self.say(
            f"step {step}{ahead}: forget {value:.2f} of {pace.alpha:.2f} {unit}, {said} of "
            f"{len(look.forget)} rows said; retain loss {kept:.2f} (was {look.start:.2f}){probe}; "
            f"rate {pace.rate:.1g}; {told}"
        )

    def _asked(self) -> str:
        against = self.ask()
        cost = max(0.0, self.pace.lost) + max(0.0, self.pace.excess)
        if not against or (against == COSTLY and cost >= self.pace.cost):
            self.pace.ended = f"the goal is met{f' {against}' * bool(against)}"
            return f"{self.pace.ended}, the run ends"
        self.pace.cost = cost if against == COSTLY else math.inf
        self.pace.failed(against != COSTLY)
        return f"asked in full: {against}, so it goes on"

    def _set(self, more: dict[str, Any]) -> None:
        """Hand on the rate, also to the schedule, and the aim."""
        self.constraint.alpha = self.pace.target
        self.look_at(self.pace.target)
        for group in more["optimizer"].param_groups:
            group["lr"] = self.pace.rate
        schedule = more["lr_scheduler"]
        schedule.base_lrs = [self.pace.rate for _ in schedule.base_lrs]

    def look_at(self, aim: float) -> None:
        """Tell the objective where rows are pushed to."""
        measure: Any = self.constraint.measure
        measure.aim = aim


def trainer_of(
    given: argparse.Namespace,
    loaded: Loaded,
    goal: Goal,
    rows: tuple[Sequence[Row], Sequence[Row]],
    folder: Path,
) -> Any:
    """The Trainer of a method, before its first step; `rows` to forget and to keep."""
    objective: Any = Objective(goal, given.method, given.beta)
    constraint = ALMConstraint(objective, alpha=goal.alpha, mu=given.mu, rules=[Leak(share=0.5)])
    forget, retain = (list(each) for each in rows)
    if given.method == "npo":
        summed = losses(loaded.model, forget, pad_id(loaded.tokenizer))
        pairs = zip(forget, summed, strict=True)
        forget = [_with_reference(row, loss) for row, loss in pairs]
    kind: Any = ALMTrainer if given.method == "grad_diff" else SAULTrainer
    rho = given.rho or RHO if given.method == "saul" else 0.0
    own = {} if kind is ALMTrainer else {"rho": rho, "probe_every": 8}
    trainer = kind(
        model=loaded.model,
        args=_arguments(given, loaded, len(forget), folder),
        train_dataset=PairedDataset(forget, retain, seed=given.seed),
        data_collator=PairedCollator(loaded.tokenizer),
        constraint=constraint,
        **own,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _with_reference(row: Any, loss: float) -> Any:
    """The row with the sum of its loss, by which NPO measures."""
    return {**row, "reference_nll": loss * sum(label != IGNORE for label in row["labels"])}


def _arguments(
    given: argparse.Namespace, loaded: Loaded, rows: int, folder: Path
) -> TrainingArguments:
    per_epoch = ceil(ceil(rows / given.batch_size) / given.accumulate)
    steps = given.steps or per_epoch * (given.epochs or 0) or max(STEPS, EPOCHS * per_epoch)
    return TrainingArguments(
        output_dir=str(folder / UNFINISHED),
        per_device_train_batch_size=given.batch_size,
        gradient_accumulation_steps=given.accumulate,
        max_steps=steps,
        learning_rate=given.lr or (LORA_LR if given.lora else LR),
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=0.0,
        seed=given.seed,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        save_total_limit=1,
        report_to=given.report_to,
        use_cpu=loaded.place.device == "cpu",
        bf16=loaded.place.autocast,
        disable_tqdm=True,
        dataloader_pin_memory=loaded.place.device == "cuda",
        remove_unused_columns=False,
    )


def trace_of(history: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """A row of numbers per step, from the log of the Trainer."""
    names = {
        "lr": "learning_rate",
        "retain_loss": "retain_loss",
        "forget": "constraint/value",
        "lambda": "constraint/multiplier",
        "weight": "constraint/weight",
    }
    rows = [row for row in history if "loss" in row]
    return [{ours: row.get(theirs, math.nan) for ours, theirs in names.items()} for row in rows]


def spread(count: int, most: int = SAMPLE) -> list[int]:
    """At most so many of the first `count` indices, evenly spread."""
    taken = min(count, most)
    return [i * count // taken for i in range(taken)]


@contextmanager
def asked_to_stop(stop: list[int]) -> Iterator[None]:
    """Note Ctrl-C and SIGTERM in `stop`, so that a run ends between two steps; the second is hard.

    In the main thread alone, where signals arrive.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: object) -> None:
        if stop:
            raise KeyboardInterrupt
        stop.append(number)

    names = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(name, note) for name in names]
    try:
        yield
    finally:
        for name, handler in zip(names, before, strict=True):
            signal.signal(name, handler)
