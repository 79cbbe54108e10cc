"""lambda: the weight it gives in a step, what is remembered of it, and what it has seen."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from torch_alm._constraint import numbers
from torch_alm._constraint.auto import EVERY, Response
from torch_alm._constraint.numbers import Mask, Number
from torch_alm._constraint.observations import Mean
from torch_alm._constraint.rates import Rates
from torch_alm._constraint.settings import Filter, Reading, Rule, Sense, Settings, Update
from torch_alm._constraint.stateful import Stateful

STEPS = 64  # violated steps before the first stretch: a run that short says nothing
UPDATES = 8  # and multiplier updates
SHARE = 0.9  # above this share of the last stretch's mean violation, a stretch made no progress
GROWTH = 10.0  # of the weight in the stretch that follows


class History(Stateful):
    """The past of a constraint: steps, open gates, skipped measurements, the furthest overshoot."""

    PER_ENTRY = ("visits", "met_for", "overshoot", "first")

    def __init__(self) -> None:
        self.steps = 0
        self.visits: Number = 0.0  # of these, the steps that measured an entry
        self.active_steps = 0
        self.skipped = 0
        self.is_blind = False  # the latest step saw nothing finite
        self.met_for: Number = 0.0  # steps in a row
        self.overshoot: Number = 0.0
        self.first: Number = math.nan  # an equality overshoots to the side it did not come from

    def step(self, c: Number, weight: Number, seen: Mask, met: Mask, sense: Sense) -> None:
        """Count a step with the violation c and the weight that acted."""
        self.steps += 1
        self.active_steps += numbers.any_of(weight != 0)
        self.is_blind = not numbers.any_of(seen)
        self.visits = self.visits + 1.0 * seen
        self.met_for = numbers.choose(seen, (self.met_for + 1) * met, self.met_for)
        beyond = -c
        if sense == "==":
            side = numbers.choose(c > 0, 1.0, numbers.choose(c < 0, -1.0, math.nan))
            self.first = numbers.choose(self.first == self.first, self.first, side)
            beyond = beyond * self.first
        self.overshoot = numbers.choose(beyond > self.overshoot, beyond, self.overshoot)


class Stall(Stateful):
    """Comparison of two stretches of steps violated to the same side, the second twice as long.

    The multiplier integrates the violation, so over the second stretch it about doubles. If the
    mean violation is not a tenth smaller by then, although the weight is a tenth larger, more
    pressure does not help. Each entry of a vector has stretches of its own, of the steps that
    measured it.

    Attributes:
        limit: 0, or after a stretch without progress ten times the weight at its end. A multiplier
            whose mu is found grows by shares of itself, and may grow so far until the next stretch
            ends. It is not stopped for good: where alpha, the data or the optimizer's moments have
            only begun to move, a violation that stays says little.
    """

    OF_STRETCHES = ("end", "count", "total", "mean", "weight", "limit")
    PER_ENTRY = ("run", "side", "level", *OF_STRETCHES)

    def __init__(self) -> None:
        self.run: Number = 0.0  # steps in a row violated to the same side
        self.side: Number = 0.0
        self.level: Number = math.nan  # the alpha that it was about
        self.end: Number = 0.0  # of the stretch, in such steps; 0 before the first
        self.count: Number = 0.0
        self.total: Number = 0.0
        self.mean: Number = 0.0  # violation of the last stretch
        self.weight: Number = 0.0  # at its end
        self.limit: Number = 0.0

    @property
    def is_stalled(self) -> bool:
        """Tell whether the latest stretch of some entry made no progress."""
        return numbers.any_of(self.limit > 0)

    def watch(self, excess: Number, seen: Mask, every: int, weight: Number, alpha: Number) -> None:
        """Take in one step.

        Args:
            seen: where there is a violation of this step; elsewhere all stays as it is.
            excess: the violation where it is one that the multiplier is free to push against (for
                an equality with its sign), 0 elsewhere.
            every: steps per update of the multiplier.
            weight: lambda+ of the step.
            alpha: the level, of which a new one begins a new run.
        """
        side = numbers.choose(excess > 0, 1.0, numbers.choose(excess < 0, -1.0, 0.0))
        # else this step is the first, or none
        is_same = (side != 0) & (side == self.side) & (alpha == self.level)
        now = {
            "run": numbers.choose(is_same, self.run + 1, abs(side)),
            "side": side,
            "level": alpha + 0.0 * side,
        }
        self._take(now, seen)
        is_over = seen & (self.run <= 1) & (self.end > 0)
        if numbers.any_of(is_over):
            self._take(dict.fromkeys(self.OF_STRETCHES, 0.0), is_over)
        first = max(STEPS, UPDATES * every)
        is_long = seen & (self.run > first)
        if numbers.any_of(is_long):
            self.end = numbers.choose(is_long & (self.end == 0), 2.0 * first, self.end)
            self.count = self.count + is_long
            self.total = self.total + numbers.choose(is_long, abs(excess), 0.0)
            self._compare(is_long & (self.run >= self.end), abs(weight))

    def _compare(self, ends: Mask, weight: Number) -> None:
        """Compare a stretch that ends with the last, and double the next."""
        if not numbers.any_of(ends):
            return
        mean = self.total / self.count
        is_stuck = (self.mean > 0) & (mean > SHARE * self.mean) & (SHARE * weight > self.weight)
        limit = numbers.choose(is_stuck, GROWTH * weight, 0.0)
        anew = {"count": 0.0, "total": 0.0, "end": 2 * self.end}
        self._take({"limit": limit, "mean": mean, "weight": weight, **anew}, ends)

    def _take(self, now: Mapping[str, Number], where: Mask) -> None:
        """Replace numbers there, and keep what they were elsewhere."""
        for name, number in now.items():
            setattr(self, name, numbers.choose(where, number, getattr(self, name)))


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

    def __init__(self) -> None:
        self.multiplier: Number = 0.0
        self.mu: Number = 0.0
        self.auto: Rates | None = None
        self.weight: Number = 0.0
        self.value: Number = math.nan
        self.violation: Number = math.nan
        self.level: Number = math.nan  # the alpha that the filter last saw
        self.filter: list[Any] = []
        self.rules: list[Any] = []
        self.history = History()
        self.stall = Stall()

    def put(self, multiplier: Number) -> None:
        """Go on from this lambda."""
        self.multiplier = multiplier
        if self.history.steps == 0:
            self.weight = multiplier

    def follow(self, mu: float | Literal["auto"]) -> None:
        """Go on with this mu, or with one that is found."""
        if isinstance(mu, float):
            self.mu, self.auto = mu, None
        elif self.auto is None:
            self.mu, self.auto = 0.0, Rates()
            self.auto.expand(numbers.shape(self.multiplier))

    def remember_for(self, settings: Settings) -> None:
        """Keep the memories of the filter and rules that there are now, and begin those missing."""
        now = () if settings.filter is None else (settings.filter,)
        self.filter = _memories(now, self.filter)
        self.rules = _memories(settings.rules, self.rules)

    def turn(self) -> None:
        """Forget the violations that a filter remembers: they had another sense."""
        self.filter = []

    def is_waiting(self, settings: Settings) -> bool:
        """Tell whether some rule has mu act as 0, and nothing updated."""
        return any(rule.is_waiting(self.history.steps) for rule in settings.rules)

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
            ((name, memory),) = kept
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

    def step(self, found: Mean, settings: Settings, response: Response | None = None) -> Events:
        """Take one step: the weight, and on every `every`-th the multiplier."""
        is_waiting, before = self.is_waiting(settings), self.multiplier
        c, seen, self.filter, self.weight, acts, overflows = self.preview(found, settings)
        self.level = settings.alpha + 0.0 * self.multiplier
        self.value = numbers.choose(seen, found.value, self.value)
        self.violation = numbers.choose(seen, c, self.violation)
        met = is_met(settings, self.violation)
        self.history.step(self.violation, self.weight, seen, met, settings.sense)
        due = not is_waiting and acts & (self.history.visits % settings.every == 0)
        if self.auto is not None:
            self._find(self.auto, acts, response, settings)
        elif not settings.rules:
            self.multiplier = numbers.choose(due, self.weight, self.multiplier)
        elif numbers.any_of(due):
            self._obey_rules(due, settings)
        limiting = self.limiting(settings) if settings.rules else None
        is_pushing = numbers.any_of(self.mu > 0) and limiting is None and not is_waiting
        excess = numbers.choose(met, 0.0, self.violation) if is_pushing else 0.0 * self.violation
        every = settings.every if self.auto is None else EVERY
        self.stall.watch(excess, seen, every, self.weight, settings.alpha)
        self.history.skipped += overflows
        is_new = limiting is not None and not limiting.is_limiting(before)
        return Events(limiting if is_new else None, overflows)

    def _find(self, auto: Rates, seen: Mask, response: Response | None, settings: Settings) -> None:
        """Let mu follow what was seen; lambda, too, up to the limit where more does not help."""
        added = auto.step(self.violation, seen, response)
        self.mu, limit = auto.mu, self.stall.limit
        grown = numbers.projected(self.multiplier + added, settings.sense)
        is_beyond = (limit > 0) & (abs(grown) > limit) & (abs(grown) > abs(self.multiplier))
        self.multiplier = numbers.choose(is_beyond, self.multiplier, grown)

    def _obey_rules(self, due: Mask, settings: Settings) -> None:
        """Set lambda to what the rules make of lambda+ where it is due; mu, too."""
        assert isinstance(self.mu, float)  # one that is found takes no rules
        update = Update(
            stored=self.weight,
            mu=self.mu,
            before=self.multiplier,
            weight=self.weight,
            violation=self.violation,
            seen=due,
            met_for=self.history.met_for,
            tolerance=settings.tolerance,
        )
        after: list[Any] = []
        for rule, (name, memory) in zip(settings.rules, self.rules, strict=True):
            update, memory = rule.update(update, memory)
            after.append([name, memory])
        self.multiplier = numbers.choose(due, update.stored, self.multiplier)
        self.mu, self.rules = update.mu, after


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
