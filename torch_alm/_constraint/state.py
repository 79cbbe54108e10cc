"""lambda: the weight it gives in a step, what is remembered of it, and what it has seen."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Size

from torch_alm._constraint import numbers
from torch_alm._constraint.history import History, Stall, Stateful
from torch_alm._constraint.numbers import Mask, Number
from torch_alm._constraint.observations import Mean
from torch_alm._constraint.settings import Filter, Given, Reading, Rule, Settings, Update


def is_met(settings: Settings, c: Number, more: Number = 0.0) -> Mask:
    """Tell whether the violation is at most the tolerance, or `more` than that."""
    return (abs(c) if settings.sense == "==" else c) <= settings.tolerance + more


def is_violated(settings: Settings, c: Number, more: Number = 0.0) -> bool:
    """Tell whether it is not met, by more than that, in some entry that was ever measured."""
    return numbers.any_of((c == c) & (is_met(settings, c, more) == 0))


class Events(NamedTuple):
    """The things in a step that have to be told.

    Attributes:
        limiting: the rule whose limit some multiplier has reached.
        overflowed: whether some multiplier was left as it was, to keep it finite.
    """

    limiting: Rule | None
    overflowed: bool


class Preview(NamedTuple):
    """A step as it would be, before it is taken.

    Attributes:
        violation: c, filtered.
        seen: where there is one.
        memory: the filter's, with that c.
        weight: [lambda + mu c]_+ where it acts, and lambda elsewhere.
        acts: where c was seen and the weight is finite.
        overflows: whether some multiplier stays as it is, to be finite.
    """

    violation: Number
    seen: Mask
    memory: list[Any]
    weight: Number
    acts: Mask
    overflows: bool


class State(Stateful):
    """All that a constraint remembers: floats, or float64 tensors with one entry per multiplier.

    `multiplier` is lambda and `weight` lambda+ of the latest step; `value` and `violation`, which
    is filtered, are the latest ones. `filter` and `rules` are their memories, by name. `auto` is
    there where mu is found instead of given.
    """

    PER_ENTRY = ("multiplier", "weight", "value", "violation", "level")

    def __init__(self, multiplier: Number, mu: float, auto: Any) -> None:  # noqa: ANN401
        self.multiplier = multiplier
        self.mu: Number = mu
        self.auto: Any = auto  # an `Auto` of `torch_alm.auto`, which finds mu, or None
        self.weight = multiplier
        self.value: Number = math.nan
        self.violation: Number = math.nan
        self.level: Number = math.nan  # the alpha that the filter last saw
        self.filter: list[Any] = []
        self.rules: list[Any] = []
        self.history = History()
        self.stall = Stall()

    def is_waiting(self, settings: Settings, steps: int | None = None) -> bool:
        """Tell whether, after so many steps, some rule has mu act as 0, and nothing updated."""
        steps = self.history.steps if steps is None else steps
        return any(rule.is_waiting(steps) for rule in settings.rules)

    def limiting(self, settings: Settings) -> Rule | None:
        """Return the first rule at whose limit some entry is."""
        for rule in settings.rules:
            if rule.is_limiting(self.multiplier):
                return rule
        return None

    def preview(self, found: Mean, settings: Settings) -> Preview:
        """Look at the step that this mean would make; nothing is remembered."""
        c, seen, kept = found.c, numbers.only_finite(found.seen, found.c), self.filter
        if settings.filter is not None:
            ((name, memory),) = _memories([settings.filter], kept)
            by = self._moved(settings)
            if numbers.any_of(by != 0):
                memory = settings.filter.moved(memory, by)
            c, memory = settings.filter.update(Reading(c, seen, settings.sense), memory)
            seen, kept = numbers.only_finite(seen, c), [[name, memory]]
        if self.auto is not None:  # which knows c's usual size, and what of it is noise
            pressure = self.auto.push(c)
        else:
            pressure = (0.0 if self.is_waiting(settings) else self.mu) * c
        weight = numbers.projected(self.multiplier + pressure, settings.sense)
        acts = numbers.only_finite(seen, weight)
        weight = numbers.choose(acts, weight, self.multiplier)
        overflows = acts is not found.seen and numbers.any_of(acts != found.seen)
        return Preview(c, seen, kept, weight, acts, overflows)

    def _moved(self, settings: Settings) -> Number:
        """Return how much larger what the filter remembers is for alpha having changed since."""
        by = settings.alpha - self.level
        return numbers.choose(by == by, -by if settings.sense == "<=" else by, 0.0)

    def step(self, found: Mean, settings: Settings) -> Events:
        """Take one step: the weight, and on every `every`-th the multiplier.

        What a filter or rule of the user's may refuse is computed before anything changes.
        """
        before, now = self.multiplier, self.preview(found, settings)
        visits = self.history.visits + 1.0 * now.seen
        is_due = not self.is_waiting(settings) and now.acts & (visits % settings.every == 0)
        ruled = self._ruled(now, is_due, settings)
        self._take(now, found, settings)
        if self.auto is not None:
            self._find(now.acts, settings)
        else:
            self.multiplier, self.mu, self.rules = ruled
        limiting = self.limiting(settings)
        self._watch_for_stall(now, settings, is_free=limiting is None)
        self.history.skipped += now.overflows
        is_new = limiting is not None and not limiting.is_limiting(before)
        return Events(limiting if is_new else None, now.overflows)

    def _take(self, now: Preview, found: Mean, settings: Settings) -> None:
        """Remember what was seen, and the weight that acts."""
        self.filter, self.weight = now.memory, now.weight
        self.level = settings.alpha + 0.0 * self.multiplier
        self.value = numbers.choose(now.seen, found.value, self.value)
        self.violation = numbers.choose(now.seen, now.violation, self.violation)
        met = is_met(settings, self.violation)
        self.history.step(self.violation, self.weight, now.seen, met, settings.sense)

    def _watch_for_stall(self, now: Preview, settings: Settings, *, is_free: bool) -> None:
        """Compare violations, where the multiplier is free to push against them."""
        waits = self.is_waiting(settings, self.history.steps - 1)
        is_pushing = is_free and not waits and numbers.any_of(self.mu > 0)
        met = is_met(settings, self.violation)
        excess = numbers.choose(met, 0.0, self.violation) if is_pushing else 0.0 * self.violation
        every = settings.every if self.auto is None else self.auto.every
        self.stall.watch(excess, now.seen, every, self.weight, settings.alpha)

    def _find(self, seen: Mask, settings: Settings) -> None:
        """Let mu follow what was seen; lambda, too, up to the limit where more does not help."""
        added = self.auto.step(self.violation, seen)
        self.mu, limit = self.auto.mu, self.stall.limit
        grown = numbers.projected(self.multiplier + added, settings.sense)
        is_beyond = (limit > 0) & (abs(grown) > limit) & (abs(grown) > abs(self.multiplier))
        self.multiplier = numbers.choose(is_beyond, self.multiplier, grown)

    def _ruled(
        self, now: Preview, is_due: Mask, settings: Settings
    ) -> tuple[Number, Number, list[Any]]:
        """Return lambda, mu and the memories that the rules make of lambda+ where it is due."""
        kept = _memories(settings.rules, self.rules) if settings.rules else []
        if not settings.rules or not numbers.any_of(is_due):
            return numbers.choose(is_due, now.weight, self.multiplier), self.mu, kept
        assert isinstance(self.mu, (int, float))  # one that is found takes no rules
        c = numbers.choose(now.seen, now.violation, self.violation)
        met_for = numbers.choose(
            now.seen, (self.history.met_for + 1) * is_met(settings, c), self.history.met_for
        )
        update = Update(
            stored=now.weight,
            mu=self.mu,
            before=self.multiplier,
            weight=now.weight,
            violation=c,
            seen=is_due,
            met_for=met_for,
            tolerance=settings.tolerance,
        )
        after: list[Any] = []
        for rule, (name, memory) in zip(settings.rules, kept, strict=True):
            update, memory = rule.update(update, memory)
            after.append([name, memory])
        return numbers.choose(is_due, update.stored, self.multiplier), update.mu, after


def unwinds(state: State, settings: Settings, total_steps: int) -> bool:
    """Tell whether the weight comes to 0 if each step left is met by the latest violation's size.

    Entries that were never measured are left out.
    """
    state, c = copy.deepcopy(state), state.violation
    met = Mean(state.value, -abs(c), c == c, 0)
    left = total_steps - state.history.steps
    while settings.sense != "==" and numbers.any_of((state.weight != 0) & met.seen):
        if left <= 0:
            return False
        state.step(met, settings)
        left -= 1
    return True


def _memories(users: Sequence[Filter | Rule], saved: Iterable[Any]) -> list[Any]:
    """Pair the name of each filter or rule with the memory saved under it, or with a first one."""
    left, found = list(saved), list[Any]()
    for user in users:
        name = type(user).__name__
        mine = next((each for each in left if each[0] == name), None)
        if mine is None:
            mine = [name, user.init()]
        else:
            left = [each for each in left if each is not mine]
        found.append(mine)
    return found


LOADING = "ALMConstraint.load_state_dict"


def check_checkpoint(found: Given, mine: Given, size: Size | None) -> None:
    """Raise `ValueError` if anything would be lost or belong to another constraint.

    Args:
        found: the checkpoint.
        mine: a `state_dict` of the constraint that is to load it.
        size: the shape of its multipliers; `None` if that is still open.
    """
    if "multiplier" in found and ("auto" in found) != ("auto" in mine):
        has, needs = ("finds", "has been given one") if "auto" in found else ("was given", "finds")
        raise ValueError(
            f"{LOADING}: the checkpoint's constraint {has} its mu and this one {needs}; what is "
            "remembered of it would be lost or missing. Did you mean the same mu as in the run "
            "that was saved?"
        )
    _check_names(found, mine, "")
    if found["sense"] != mine["sense"]:
        raise ValueError(
            f"{LOADING}: the checkpoint's sense is \"{found['sense']}\" and this one's "
            f'"{mine["sense"]}"; the multiplier would push the wrong way. Is it another constraint?'
        )
    shape = numbers.shape(found["multiplier"])
    if size is not None and shape != size:
        raise ValueError(
            f"{LOADING}: the checkpoint has multipliers of shape {tuple(shape)} and this "
            f"constraint {tuple(size)}. Is it another constraint?"
        )
    if not numbers.is_finite(found["multiplier"]):
        raise ValueError(
            f"{LOADING}: the checkpoint's multiplier is not finite and would stay so. Was it saved "
            "by another library?"
        )


def _check_names(found: Given, mine: Given, where: str) -> None:
    """Compare the entries, and within those that have entries of their own."""
    if {*found} != {*mine}:
        raise ValueError(
            f"{LOADING} found the entries {sorted(map(str, found))}{where} and needs "
            f"{sorted(mine)}. Is it the checkpoint of a constraint?"
        )
    for name, entry in mine.items():
        if isinstance(entry, Mapping):
            _check_names(found[name], entry, f" in {name!r}")
