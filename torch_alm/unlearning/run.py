"""A run: its first measurement, its goal, its Trainer, and its verdict."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch_alm.language._encoding import prompt_ids
from torch_alm.language._telling import find_telling, names_in
from torch_alm.unlearning import report
from torch_alm.unlearning.asking import measure
from torch_alm.unlearning.checks import RAISED, Checks, Pace, RowSample
from torch_alm.unlearning.errors import Refusal, Say
from torch_alm.unlearning.goal import (
    COST_LOSS,
    ERRORS,
    WORDS,
    Goal,
    Verdict,
    goal_of,
    guess_loss,
    judge,
    lost_of,
)
from torch_alm.unlearning.layer_cache import Weights
from torch_alm.unlearning.loading import Setup, replace_answers, rows_to_keep
from torch_alm.unlearning.measurement import Measurement, by_row, is_known
from torch_alm.unlearning.model import list_names, with_adapters
from torch_alm.unlearning.ranks import share
from torch_alm.unlearning.rewordings import ForgetRows, bare_rows, rows_in_own_words
from torch_alm.unlearning.rows import Entry
from torch_alm.unlearning.train import CHANGE, cost_of, make_trainer, trace_of

SHOWN = 300  # last characters of a prompt, where a wrong format shows


@dataclass(frozen=True)
class Start:
    """The measurement before the first step, and the goal; a resumed run reads both."""

    measured: Measurement
    known: bool
    goal: Goal
    notes: list[str]


@dataclass(frozen=True)
class Run:
    """A model with its rows, and the start of its run."""

    loaded: Setup
    start: Start
    say: Say

    def opening_report(self, trainer: Any) -> tuple[list[str], dict[str, Any]]:
        """Return, before the first step, what the model says, the goal, and the cost of a step."""
        numbers, rows = self.start.measured.numbers, self.start.measured.answers
        said = {k: f"{sum(a.said for a in v)} of {len(v)}" for k, v in rows.items()}
        probe = f", {said['probe']} probe answers" if "probe" in said else ", and there is no probe"
        seconds, memory = cost_of(self.loaded, trainer)
        rate, most = trainer.args.learning_rate, trainer.args.max_steps
        is_found = self.loaded.given.lr is None
        why = f"a step of {CHANGE:g} nats of log-odds" if is_found else "set by hand"
        lines = [
            f"Now it says {said['forget']} forget answers, {said['retain']} retain answers{probe}.",
            f"Loss in nats per token: {numbers['forget'].telling_loss:.2f} of the telling words "
            "of the forget answers (telling loss), "
            f"{numbers['retain'].loss:.2f} of the retain answers.",
            f"Goal: {self.start.goal.summary}.",
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
        """Return the content of the report."""
        given, start = self.loaded.given, self.start
        trace = trace_of(checks.trainer.state.log_history)
        verdict = judge(start.goal, start.measured, after, given, known_before=start.known)
        return report.content_of(
            title,
            f"{given.method}, {len(trace)} steps. Goal: {start.goal.summary}.",
            {**settings, "known_before": start.known},
            goal=asdict(start.goal),
            verdict=asdict(verdict),
            models=[start.measured.to_report("before"), after.to_report("after")],
            trace=trace,
            notes=[*start.notes, checks.ending],
        )


def begin_run(loaded: Setup, say: Say) -> Run:
    """Measure the model and set the goal; raise `Refusal` if there is nothing to forget."""
    given = loaded.given
    found_now = measure(loaded, "before", whole=given.answers == "said")
    known = _check_known(loaded, found_now, say)
    unseen = found_now.numbers.get("holdout")
    if unseen and unseen.said > 0.5:  # their loss would be a goal too low to forget
        raise Refusal(
            f"`holdout`: the model says {unseen.said:.0%} of its answers, so it has seen them, "
            "and the goal would be to forget no more than that. Is it the right set?"
        )
    if given.answers == "said":
        loaded = replace_answers(loaded, found_now)
        found_now = measure(loaded, "as said")
    goal = share(goal_of(loaded))
    if unseen := found_now.numbers.get("holdout"):
        goal = replace(goal, words=max(WORDS, unseen.words + ERRORS * unseen.words_error))
    most, notes = guess_loss(loaded), list[str]()
    if goal.alpha > most:
        notes.append(
            f"The level of {goal.alpha:.2f} nats per token ({goal.source}) is above {most:.2f}, "
            "the loss of a model that knows nothing and guesses: it has to be sure of other "
            f"answers, which costs what shall be kept. Did you mean {0.9 * most:.1f} or less?"
        )
    notes += _name_alone(loaded.entries)
    if not given.anyway:
        _check_unreached(goal, found_now)
    return Run(loaded, Start(found_now, known, goal, notes), say)


def resume_run(loaded: Setup, kept: Mapping[str, Any], say: Say) -> Run:
    """Return a run from its recorded start (`asdict` in JSON)."""
    before, goal = Measurement.from_json(kept["measured"]), Goal(**kept["goal"])
    loaded = replace_answers(loaded, before) if loaded.given.answers == "said" else loaded
    return Run(loaded, Start(before, kept["known"], goal, kept["notes"]), say)


def _check_known(loaded: Setup, measured: Measurement, say: Say) -> bool:
    """Return whether the model says half of the forget answers; raise `Refusal` if not."""
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
        f"({exact} of them token for token; {words:.0%} of all words). What is not said cannot be "
        "seen to go, and the goal would be met without anything forgotten; `anyway` goes on, and "
        "then it never counts as met. Was the model taught in another format (`template`, "
        "`system`, rows of prompt and completion), or is it another model?"
    )


def _name_alone(sets: Mapping[str, Sequence[Entry]]) -> list[str]:
    """Name the forget rows whose question no retain row asks of something else.

    It shares two of their telling words that are no names, or half of them.
    """
    asks = {k: [_words_asked(entry) for entry in v] for k, v in sets.items()}
    both = zip(sets["forget"], asks["forget"], strict=True)
    alone = [
        entry.where for entry, own in both
        if not any(len(own & other) >= min(2, len(own) / 2) for other in asks["retain"])
    ]  # fmt: skip
    if not alone:
        return []
    told = f"{len(alone)} of {len(sets['forget'])} forget rows ask what no retain row asks"
    return [f"{told} of something else ({list_names(alone)}): all that is asked like them may go "
            "with them. Add two retain rows or more that ask the same of others."]  # fmt: skip


def _words_asked(entry: Entry) -> frozenset[str]:
    """Return the telling words of a question, without names if there are others."""
    text = entry.prompt or entry.answer
    return find_telling(text) - names_in(text) or find_telling(text)


def _check_unreached(goal: Goal, measured: Measurement) -> None:
    """Raise `Refusal` for a goal that a model reaches which says the answers."""
    numbers, rows = measured.numbers["forget"], by_row(measured.answers["forget"])
    every = replace(goal, kind="rows") if goal.kind == "loss" else goal
    if every.holds(numbers, rows):
        raise Refusal(
            f"the goal holds before the first step ({goal.summary}; the model is at "
            f"{numbers.telling_loss:.2g}), and yet the model says {numbers.said:.0%} of the "
            "answers: nothing would be forgotten. Did you mean a higher goal, or, if it says them "
            'in other words than the rows, its own: "said" for `answers`?'
        )


def make_trainable(loaded: Setup) -> Setup:
    """Return the setup with new adapters, or checkpointing, as the options ask."""
    if loaded.given.gradient_checkpointing:
        loaded.model.gradient_checkpointing_enable({"use_reentrant": False})
    if loaded.given.lora:
        return replace(loaded, model=with_adapters(loaded.model, loaded.given.seed))
    return loaded


def make_checks(run: Run, folder: Path, original: Weights | None = None) -> Checks:
    """Return the checks of a run, with its Trainer; see `make_trainer`."""
    given, loaded, goal, before = run.loaded.given, run.loaded, run.start.goal, run.start.measured
    with nullcontext() if original is None else original.lend():
        bare = bare_rows(loaded, goal)
    wordings = ForgetRows(loaded, before.answers["forget"], bare)
    probe = rows_in_own_words(loaded, "probe", before.answers.get("probe", []))
    kept, most = rows_to_keep(loaded, before, twice=bool(bare)), given.max_retain_loss
    trainer = make_trainer(loaded, goal, (wordings.pushed, kept), folder, original)
    aim, rate = RAISED * goal.alpha, trainer.args.learning_rate
    pace = Pace(goal.alpha, aim, rate, fixed=given.lr is not None)
    limit = COST_LOSS if most is None else most - before.numbers["retain"].loss

    def ask() -> tuple[Verdict, list[float], bool]:
        """Ask the forget rows, and the retain and probe rows once these are gone."""
        found = before
        for names in (("forget",), ("retain", "probe")):
            now = measure(loaded, "asking", names)
            found = Measurement({**found.numbers, **now.numbers}, {**found.answers, **now.answers})
            if (verdict := judge(goal, before, found, given)).missed:
                break
        return verdict, _measure_cost(before, found), wordings.reword(found.answers["forget"])

    look = RowSample(loaded, goal, wordings, probe)
    checks = Checks(look, pace, limit, trainer, given.save_every, ask, run.say, trainer.stop)
    trainer.add_callback(checks)
    return checks


def _measure_cost(before: Measurement, after: Measurement) -> list[float]:
    """Count the probe answers that are lost, then the retain answers; and the retain loss."""
    both = [(m.answers.get("probe", ()), m.answers["retain"]) for m in (before, after)]
    lost = [float(len(lost_of(*each)[0])) for each in zip(*both, strict=True)]
    return [*lost, round(after.numbers["retain"].loss, 2)]
