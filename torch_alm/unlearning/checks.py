"""Checks between the steps of a run, which set its rate and end it."""

import math
from collections.abc import Callable, Sequence
from ctypes import CDLL
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import ceil
from statistics import fmean
from time import monotonic
from typing import Any, TypeVar, cast

from transformers import TrainerCallback

from torch_alm.language import Row, losses, pad_id
from torch_alm.language._strings import StringScores, string_scores
from torch_alm.unlearning.errors import Say
from torch_alm.unlearning.goal import Goal, Verdict
from torch_alm.unlearning.loading import Setup
from torch_alm.unlearning.model import list_names
from torch_alm.unlearning.ranks import spread
from torch_alm.unlearning.rewordings import ForgetRows
from torch_alm.unlearning.train import STEPS, WeightSnapshot

T = TypeVar("T")
EVERY, LOOK = 10, 5  # steps between two checks, and two looks at the forget rows
SAMPLE = 64  # rows of a kind that a check reads, spread evenly over the file
FACTOR = 2.0  # by which the rate rises and falls
MOST = 1e-2  # rate: above it AdamW breaks the retain rows
PROGRESS = 0.05  # share of the missing nats that counts as progress between two checks
PATIENCE = 25  # checks without a smaller gap before the run is given up
STUCK = 5  # such checks before a rate that was halved may rise again
SMALLER = 0.01  # by how much a gap has to shrink to be a smaller one
SPOILT = 0.2  # nats beyond the limit of the retain loss: the steps that did it are taken back
SETTLED = 0.01  # nats: a retain loss that falls by more between two looks is still recovering
ALARM = 0.6  # nats between model and original on one batch, from which on it is looked at once
RAISED = 1.1  # times the level, the aim of training, so that rows end above the level
MET = "the goal is met"
MET_AT_A_COST = f"{MET} at a cost"
LIMITED = "no more steps were allowed"
TRIES = 3  # askings without a cheaper state, after which the cheapest is taken
STAYS, GIVE_UP = 3, 8  # askings in a row that say a row: it is named, and the run is given up
KEY = "torch_alm.command"  # of the pace in `trainer_state.json`


@dataclass
class Pace:
    """The rule that turns measured numbers into the rate, the aim and the end of a run.

    Once the level is reached, and the retain loss within its limit and falling no more, the model
    is to be asked. Each asking waits for twice as many looks in a row as the one before, and the
    aim rises where too much is still said; where that is in words not pushed before, neither does.

    A goal that is met ends the run. Where it is met at a cost, the forget side rests, and the
    retain side may repair it. Of all states that met the goal the cheapest is kept: after an asking
    that finds no cheaper one the run goes on from there at half the rate, and after three it ends
    there.

    Steps that raise the retain loss by 0.2 nats beyond its limit are taken back, and the rate is
    halved. A retain loss above its limit, unless it falls, halves the rate, and forgetting rests.
    A forget value below the level that rose by less than a twentieth of what it lacks of the aim
    doubles it, but not one that reached the level, nor back to one that was halved, unless five
    checks brought nothing nearer.
    25 checks that bring neither value nor retain loss nearer by a hundredth, or eight askings in a
    row that find a row still said, and the run is given up: its words or tokens are then not those
    that are pushed. A rate that is given stays, and the run is not given up.
    """

    alpha: float  # the level that the forget value shall reach
    aim: float  # the level that training aims at
    rate: float
    fixed: bool  # whether the rate stays as it is
    most: float = MOST  # rate
    value: float = 0.0  # of the forget rows, at the last check or asking
    excess: float = 0.0  # of the retain loss beyond its limit, in nats, then
    needed: int = 1  # looks in a row before the model is asked
    held: int = 0  # such looks so far
    gap: float = math.inf  # the smallest so far
    stalled: int = 0  # checks without a smaller one
    ended: str = ""  # why the run is over
    best: list[float] = field(default_factory=list[float])  # cost of the cheapest that met the goal
    tries: int = 0  # askings since then

    def observe(self, value: float, excess: float, *, reached: bool) -> bool:
        """Take in numbers; return whether the model is to be asked, the level being reached."""
        if not reached or not excess <= 0:
            self.held = 0
            return False
        self.held += 1
        self.most = min(self.most, self.rate)  # which has reached the level
        is_recovering, self.excess = excess < self.excess - SETTLED, excess
        if self.held < self.needed or is_recovering:
            return False
        self.value, self.held = value, 0
        return True

    def decide(self, verdict: Verdict, cost: list[float], *, is_new: bool = False) -> str:
        """Take in the verdict, its cost, and whether rows have new words; return what follows."""
        if verdict.outcome == "met":
            self.ended, self.best, self.tries = MET, cost, 0
            return f"{self.ended}, the run ends"
        told = f"asked in full: {', '.join(verdict.missed) or 'at a cost'}"
        if not verdict.missed and (not self.best or cost < self.best):
            self.best, self.tries = cost, 0
            return f"{told}, the least so far: forgetting rests"
        if self.best:
            return f"{told}, {self.return_to_best()}"
        if is_new and "said" in verdict.missed:
            self.value = -math.inf  # of other rows: what comes next is no slow step from it
            return f"{told}, in other words, which are to go now, too"
        self.needed *= 2
        if verdict.missed:
            self.aim *= RAISED
        return f"{told}, so it goes on"

    def list_stuck(self, said: Callable[[int], list[str]]) -> str:
        """Return what was said in three askings in a row, as text; give up after eight of them."""
        if (stuck := said(GIVE_UP)) and not (self.fixed or self.ended or self.best):
            self.ended = f"gave up: however it is pushed, it says {list_names(stuck)}"
        return f"; stays said: {list_names(names)}" if (names := said(STAYS)) else ""

    def return_to_best(self) -> str:
        """Count a try that found no cheaper state; return what follows."""
        self.tries += 1
        if self.tries >= TRIES:
            self.ended = MET_AT_A_COST
        if not self.fixed:
            self.most = self.rate = self.rate / FACTOR
        return "no cheaper state: back to the best one"

    def is_spoilt(self, excess: float) -> bool:
        """Return whether the steps since the last good check are to be taken back."""
        return not (self.fixed or excess <= SPOILT)

    def roll_back(self) -> str:
        """Halve the rate after steps that spoiled the retain rows; return what follows, as text."""
        self.most = self.rate = self.rate / FACTOR
        self.held, self.stalled = 0, self.stalled + 1
        if self.stalled >= PATIENCE:
            self.ended = "gave up: no rate leaves the retain rows as they are"
        return "the retain rows were spoiled: taken back, the rate is halved"

    def check(self, value: float, excess: float, *, reached: bool) -> str:
        """Take in numbers every ten steps, set the rate, and return what follows, as text."""
        gained, worse = value - self.value, excess - self.excess
        self.value, self.excess = value, excess
        if self.fixed:
            return "goes on"
        if self._is_stalled():
            self.ended = "gave up: nothing has come nearer for long"
            return self.ended
        if not excess <= 0:
            told = "retain loss above its limit: forgetting rests"
            if worse < 0:
                return told
            self.most = self.rate = self.rate / FACTOR
            return f"{told}, the rate is halved"
        is_slow = value < self.alpha and gained < PROGRESS * (self.aim - value)
        most = self.most if self.stalled < STUCK else MOST
        if not reached and is_slow and FACTOR * self.rate <= most:
            self.rate *= FACTOR
            return "forgetting is slow: the rate is doubled"
        return "goes on"

    @property
    def is_resting(self) -> bool:
        """Return whether forgetting rests while the retain rows catch up."""
        return bool(self.best) or (self.excess > 0 and not self.fixed)

    def _is_stalled(self) -> bool:
        if not math.isfinite(self.value + self.excess):
            return True
        gap = max(0.0, 1 - self.value / self.aim) + max(0.0, self.excess)
        self.stalled = 0 if gap < self.gap - SMALLER else self.stalled + 1
        self.gap = min(gap, self.gap)
        return self.stalled >= PATIENCE


class RowSample:
    """Rows that a check reads: of the probe those that the model says, in its own words.

    All ranks decide by what the first has found.
    """

    def __init__(
        self, loaded: Setup, goal: Goal, wordings: ForgetRows, probe: Sequence[Row]
    ) -> None:
        self.loaded, self.goal, self.wordings = loaded, goal, wordings
        self.pad, probe = pad_id(loaded.tokenizer), _spread(probe)
        self.retain = _spread(loaded.rows("retain")[: loaded.given.rows])
        self.start, self.low, self.mean = self.measure_retain(), 0, 0.0
        scores = self.scores(probe, 0.0)
        self.probe = [row for row, score in zip(probe, scores, strict=True) if score.exact_match]

    @property
    def forget(self) -> list[Row]:
        """The rows to forget that a check reads."""
        return _spread(self.wordings.rows)

    def scores(self, rows: Sequence[Row], aim: float) -> list[StringScores]:
        """Score rows; a loss beyond the aim need not be exact."""
        model, tokenizer = self.loaded.model, self.loaded.tokenizer
        score = partial(string_scores, model, tokenizer, enough=aim)
        return spread(self.loaded, score, rows) if rows else []

    def measure_forget(self, aim: float) -> tuple[float, bool, int]:
        """Return the forget value, whether the level is reached, and the number of known rows."""
        scores = self.scores(self.forget, aim)
        known = sum(score.exact_match for score in scores)
        self.wordings.spell(_spread(range(len(self.wordings.rows))), scores, aim)
        loss = [0.0 if s.exact_match and s.loss >= aim else s.loss for s in scores]  # still said
        self.low, self.mean = sum(x < self.goal.floor for x in loss), fmean(loss)
        reached = self.mean >= self.goal.alpha and (self.goal.kind == "loss" or not self.low)
        return fmean(min(x, aim) for x in loss), reached, known

    def measure_retain(self) -> float:
        """Return the retain loss."""
        score = partial(losses, self.loaded.model, pad_id=self.pad)
        return fmean(spread(self.loaded, score, self.retain))

    def describe(self, value: float, aim: float, known: int, kept: float) -> str:
        """Return the numbers of a check as text; in a known row every token is the likeliest."""
        goal, probe = self.goal, ""
        forget = f"telling loss {value:.2f} of {goal.alpha:.2f} (each row capped at {aim:.2f})"
        if self.probe:
            scores = self.scores(self.probe, 0.0)
            probe = f", {sum(s.exact_match for s in scores)} of {len(scores)} probe rows"
        return (
            f"{forget}; still known: {known} of {len(self.forget)} forget wordings{probe}; "
            f"retain loss {kept:.2f} (was {self.start:.2f})"
        )


def _spread(rows: Sequence[T]) -> list[T]:
    """Return at most `SAMPLE` rows, evenly spread."""
    taken = min(len(rows), SAMPLE)
    return [rows[i * len(rows) // taken] for i in range(taken)]


@dataclass(eq=False)
class Checks(TrainerCallback):
    """Checks between the steps: they print a line, set the rate and the aim, and end the run."""

    look: RowSample
    pace: Pace
    limit: float  # nats by which the retain loss may rise
    trainer: Any  # whose constraint has the aim for its alpha
    minutes: float  # between two checkpoints
    ask: Callable[[], tuple[Verdict, list[float], bool]]  # its cost; whether rows have new words
    say: Say
    stop: list[int] = field(default_factory=list[int])
    saved: float = field(default_factory=monotonic)
    is_stopped: bool = False

    @property
    def ending(self) -> str:
        """After how many steps the run ended, and why."""
        step, most = self.trainer.state.global_step, self.trainer.args.max_steps
        why = self.pace.ended or (LIMITED if step >= most else "it was stopped")
        best = f", with the weights of step {self.good.step}" if self.pace.best else ""
        return f"Ended after {step} of at most {most} steps: {why}{best}."

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Restore the pace of a checkpoint; a run that had ended may go on."""
        if (found := state.stateful_callbacks.get(KEY)) is not None:
            kept = cast("dict[str, Any]", found)
            for name in ("rows", "pushed"):
                getattr(self.look.wordings, name)[:] = kept.pop(name)
            self.pace = replace(Pace(**kept), ended="", stalled=0, tries=0)
        self.good = WeightSnapshot(more["model"], state.global_step)
        self._set(more)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Check and save, each if it is due; also save if the run is stopped or over."""
        step = state.global_step
        is_alarmed = not (self.pace.fixed or float(self.trainer.divergence) <= ALARM)
        if step % LOOK == 0 or is_alarmed:
            self._check(step, is_alarmed, more)
        self._set(more)
        rows = {name: getattr(self.look.wordings, name) for name in ("rows", "pushed")}
        state.stateful_callbacks[KEY] = {**asdict(self.pace), **rows}
        over = bool(self.pace.ended) or step >= state.max_steps
        if (over or self.stop) and self.pace.best:
            self.good.take_back(more["optimizer"])
        self.is_stopped = bool(self.stop) and not over
        is_late = monotonic() - self.saved > 60 * self.minutes and not self.pace.best
        if over or self.stop or is_late:
            control.should_save = not self.pace.ended.startswith(MET)
            self.saved = monotonic()
        control.should_training_stop = control.should_training_stop or over or bool(self.stop)

    def release(self) -> None:
        """Free the memory of training: moments, gradients, the last good weights."""
        self.good.pairs.clear()
        self.good.take_back(self.trainer.optimizer)  # of no weights: the moments alone
        self.trainer.model.zero_grad()
        if trim := getattr(CDLL(None), "malloc_trim", None):
            trim(0)  # glibc keeps what is freed

    def _check(self, step: int, is_alarmed: bool, more: dict[str, Any]) -> None:
        """Read the forget rows, and the others if the level is reached or a check is due."""
        pace, look, is_due = self.pace, self.look, step % EVERY == 0
        before = pace.value
        value, reached, known = look.measure_forget(pace.aim)
        if not (reached or is_due or is_alarmed or pace.best):
            return
        why = f": {look.low} of {len(look.forget)} wordings are below the goal" if look.low else ""
        kept = look.measure_retain()
        excess = kept - look.start - self.limit
        tries, is_spoilt = pace.tries, pace.is_spoilt(excess)
        if is_spoilt:
            told = f"{pace.roll_back()}, on from the weights of step {self.good.step}"
            self.good.take_back(more["optimizer"])
        elif pace.observe(value, excess, reached=reached):
            verdict, cost, is_new = self.ask()
            told = pace.decide(verdict, cost, is_new=is_new)
            told += pace.list_stuck(look.wordings.list_said)
            if pace.best and not pace.tries:
                self.good.keep(step)
        elif pace.best and not reached:
            told = f"the level is lost, {pace.return_to_best()}"
        elif is_due:
            told = pace.check(value, excess, reached=reached) + why
        else:
            return
        if pace.tries > tries:
            self.good.take_back(more["optimizer"])
        elif not (is_spoilt or pace.best):
            self.good.keep(step)
        left = ceil((pace.alpha - value) / (value - before)) * EVERY if value > before else 0
        ahead = f" of about {step + left}" if 0 < left < STEPS and not pace.ended else ""
        line = look.describe(value, pace.aim, known, kept)
        self.say(f"step {step}{ahead}: {line}; rate {pace.rate:.3g}; {told}")

    def _set(self, more: dict[str, Any]) -> None:
        """Set the rate of optimizer and schedule, and the alpha of the constraint: the aim."""
        goal, is_above = self.look.goal, self.look.mean >= self.pace.aim
        aim = self.pace.aim * (goal.floor / goal.alpha if is_above else 1)  # of the last rows alone
        self.trainer.constraint.alpha, self.trainer.is_resting = aim, self.pace.is_resting
        schedule, optimizer = more["lr_scheduler"], more["optimizer"]
        schedule.base_lrs = [self.pace.rate for _ in schedule.base_lrs]
        for group in optimizer.param_groups:
            group["lr"] = self.pace.rate
