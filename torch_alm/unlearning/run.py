"""A run: the model measured as it is, its goal, its Trainer, and the verdict on it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch_alm.language._encoding import prompt_ids
from torch_alm.language._models import LanguageModel
from torch_alm.unlearning import report
from torch_alm.unlearning.asking import measured
from torch_alm.unlearning.checks import RAISED, Checks, Look, Pace
from torch_alm.unlearning.errors import Refusal, Say
from torch_alm.unlearning.goal import (
    COST_LOSS,
    ERRORS,
    WORDS,
    Goal,
    Verdict,
    goal_of,
    judge,
    uniform,
)
from torch_alm.unlearning.loading import Loaded, as_said, kept_rows
from torch_alm.unlearning.measurement import Measurement, by_row, is_known
from torch_alm.unlearning.model import with_adapters
from torch_alm.unlearning.spoken import Wordings, bare_rows, in_own_words
from torch_alm.unlearning.train import CHANGE, cost_of, trace_of, trainer_of

SHOWN = 300  # characters of a prompt: its end, where a format goes wrong


@dataclass(frozen=True)
class Start:
    """The model as it is, and the goal; what a run that is taken up again finds written down."""

    measured: Measurement
    known: bool
    goal: Goal
    notes: list[str]


@dataclass(frozen=True)
class Run:
    """A model with the rows as it reads them, and the beginning of its run."""

    loaded: Loaded
    start: Start
    say: Say

    def known_now(self, trainer: Any) -> tuple[list[str], dict[str, Any]]:
        """What the model says before the first step, the goal, and what a step takes."""
        numbers, rows = self.start.measured.numbers, self.start.measured.answers
        said = {k: f"{sum(a.said for a in v)} of {len(v)}" for k, v in rows.items()}
        probe = f", {said['probe']} probe answers" if "probe" in said else ", and there is no probe"
        seconds, memory = cost_of(self.loaded, trainer)
        rate, most = trainer.args.learning_rate, trainer.args.max_steps
        is_found = self.loaded.given.lr is None
        why = f"a step of {CHANGE:g} nats of log-odds" if is_found else "set by hand"
        lines = [
            f"Now it says {said['forget']} forget answers, {said['retain']} retain answers{probe}.",
            f"Loss in nats per token: {numbers['forget'].gold:.2f} of the telling words of the "
            f"forget answers (telling loss), {numbers['retain'].loss:.2f} of the retain answers.",
            f"Goal: {self.start.goal.told}.",
            f"Rate: {rate:.2g}, {why}.",
            f"A step takes about {seconds:.2g} s and {memory / 1e9:.1f} GB; at most {most} are "
            "taken.",
            *self.start.notes,
        ]
        taken = {"seconds_per_step": seconds, "bytes": memory, "most_steps": most}
        shown = {name: asdict(each) for name, each in numbers.items()}
        return lines, {"goal": asdict(self.start.goal), "numbers": {"before": shown}, **taken}

    def content(
        self, title: str, settings: Mapping[str, Any], checks: Checks, after: Measurement
    ) -> dict[str, Any]:
        """All that a report has of it."""
        given, start = self.loaded.given, self.start
        trace = trace_of(checks.trainer.state.log_history)
        verdict = judge(start.goal, start.measured, after, given, known_before=start.known)
        return report.content_of(
            title,
            f"{given.method}, {len(trace)} steps. Goal: {start.goal.told}.",
            {**settings, "known_before": start.known},
            goal=asdict(start.goal),
            verdict=asdict(verdict),
            models=[start.measured.named("before"), after.named("after")],
            trace=trace,
            notes=[*start.notes, checks.told],
        )


def begun(loaded: Loaded, say: Say) -> Run:
    """Measure the model as it is; refuse one with nothing to forget."""
    given = loaded.given
    found_now = measured(loaded, "before", whole=given.answers == "said")
    known = _check_known(loaded, found_now, say)
    unseen = found_now.numbers.get("holdout")
    if unseen and unseen.said > 0.5:  # their loss would be a goal too low to forget
        raise Refusal(
            f"`holdout`: the model says {unseen.said:.0%} of its answers, so it has seen them, "
            "and the goal would be to forget no more than that. Is it the right set?"
        )
    if given.answers == "said":
        loaded = as_said(loaded, found_now)
        found_now = measured(loaded, "as said")
    goal = goal_of(loaded)
    if unseen := found_now.numbers.get("holdout"):
        goal = replace(goal, words=max(WORDS, unseen.words + ERRORS * unseen.words_error))
    most, notes = uniform(loaded), list[str]()
    if goal.kind != "rate" and goal.alpha > most:
        notes.append(
            f"The level of {goal.alpha:.2f} nats per token ({goal.source}) is above {most:.2f}, "
            "the loss of a model that knows nothing and guesses: it has to be sure of other "
            f"answers, which costs what shall be kept. Did you mean {0.9 * most:.1f} or less?"
        )
    if not given.anyway:
        _check_unreached(goal, found_now)
    return Run(loaded, Start(found_now, known, goal, notes), say)


def taken_up(loaded: Loaded, kept: Mapping[str, Any], say: Say) -> Run:
    """The run whose beginning, through `asdict` and JSON, is written down here."""
    before, goal = Measurement.of(kept["measured"]), Goal(**kept["goal"])
    loaded = as_said(loaded, before) if loaded.given.answers == "said" else loaded
    return Run(loaded, Start(before, kept["known"], goal, kept["notes"]), say)


def _check_known(loaded: Loaded, measured: Measurement, say: Say) -> bool:
    """Tell whether the model says at least half of the forget answers; refuse if not."""
    answers = measured.answers["forget"]
    known = [is_known(row) for row in by_row(answers)]
    if sum(known) >= 0.5 * len(known):
        return True
    both = zip(answers, loaded.sets["forget"], strict=True)
    for answer, (entry, row) in [each for each in both if not is_known([each[0]])][:3]:
        literal = loaded.tokenizer.decode(prompt_ids(row))
        asked = (answer.prompt if entry.is_text else literal)[-SHOWN:]
        say(
            f"{answer.where}\n  asked  {asked!r}\n  says   {answer.answer!r}\n"
            f"  should {answer.reference!r}"
        )
    if loaded.given.anyway:
        return False
    exact, words = sum(a.exact_match for a in answers), measured.numbers["forget"].rouge
    raise Refusal(
        f"asked the forget rows, the model says {sum(known)} of {len(known)} forget answers "
        f"({exact} of them word for word; {words:.0%} of all words). What is not said cannot be "
        "seen to go, and the goal would be met without anything forgotten; `anyway` goes on, and "
        "then it never counts as met. Was the model taught in another format (`template`, "
        "`system`, rows of prompt and completion), or is it another model?"
    )


def _check_unreached(goal: Goal, measured: Measurement) -> None:
    """Refuse a goal that a model reaches which says the answers: nothing would push."""
    numbers, rows = measured.numbers["forget"], by_row(measured.answers["forget"])
    every = replace(goal, kind="rows") if goal.kind == "loss" else goal
    if every.holds(numbers, rows):
        raise Refusal(
            f"the goal holds before the first step ({goal.told}; the model is at "
            f"{goal.value(numbers):.2g}), and yet the model says {numbers.said:.0%} of the "
            "answers: nothing would be forgotten. Did you mean a higher goal, or, if it says them "
            'in other words than the rows, its own: "said" for `answers`?'
        )


def made_trainable(loaded: Loaded) -> Loaded:
    """The model with the weights, or adapters, that are to move."""
    if loaded.given.gradient_checkpointing:
        loaded.model.gradient_checkpointing_enable({"use_reentrant": False})
    if loaded.given.lora:
        return replace(loaded, model=with_adapters(loaded.model, loaded.given.seed))
    return loaded


def prepared(run: Run, folder: Path, original: LanguageModel | None = None) -> Checks:
    """The checks that pace and end the run, and have its Trainer; see `trainer_of`."""
    given, loaded, goal, before = run.loaded.given, run.loaded, run.start.goal, run.start.measured
    bare = bare_rows(loaded, loaded.model if original is None else original, goal)
    wordings = Wordings(loaded, before.answers["forget"], bare)
    probe = in_own_words(loaded, "probe", before.answers.get("probe", []))
    kept, most = kept_rows(loaded, before, twice=bool(bare)), given.max_retain_loss
    trainer = trainer_of(loaded, goal, (wordings.rows, kept), folder, original)
    aim = goal.alpha if goal.kind == "rate" else RAISED * goal.alpha
    pace = Pace(goal.alpha, aim, trainer.args.learning_rate, fixed=given.lr is not None)
    limit = COST_LOSS if most is None else most - before.numbers["retain"].loss

    def ask() -> tuple[Verdict, bool]:
        """Ask the retain and probe rows once the forget rows are gone."""
        found = before
        for names in (("forget",), ("retain", "probe")):
            now = measured(loaded, "asking", names)
            found = Measurement({**found.numbers, **now.numbers}, {**found.answers, **now.answers})
            if (verdict := judge(goal, before, found, given)).missed:
                break
        return verdict, wordings.take(found.answers["forget"])

    look = Look(loaded, goal, wordings, probe)
    checks = Checks(look, pace, limit, trainer, given.save_every, ask, run.say)
    trainer.add_callback(checks)
    return checks
