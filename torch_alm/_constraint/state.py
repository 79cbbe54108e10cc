"""lambda: the weight it gives in a step, what is remembered of it, and what it has seen."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from torch import Size, Tensor

from torch_alm._constraint import numbers
from torch_alm._constraint.numbers import Mask, Number
from torch_alm._constraint.loop import Response
from torch_alm._constraint.observations import Mean
from torch_alm._constraint.settings import Filter, Reading, Rule, Settings, Update

STEPS, UPDATES = 64, 8  # before the first stretch: a run that is shorter says nothing
SHARE = 0.9  # above this share of the last stretch's mean violation, a stretch made no progress
GROWTH = 10.0  # of the weight in the stretch that follows


class Stateful:
    """An object all of whose attributes are its state.

    A float is one number per multiplier and becomes a float64 tensor for several; so do not those
    in `SHARED`, nor whole numbers.
    """

    SHARED: ClassVar[tuple[str, ...]] = ()

    def state(self) -> dict[str, Any]:
        """Return everything remembered, sharing no memory; nothing of a part that is not there."""
        return {
            name: value.state() if isinstance(value, Stateful) else numbers.kept(value)
            for name, value in vars(self).items()
            if value is not None
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`, sharing no memory with it."""
        for name, value in vars(self).items():
            if isinstance(value, Stateful):
                value.load(state[name])
            elif value is not None:
                setattr(self, name, numbers.kept(state[name]))

    def expand(self, size: Size) -> None:
        """Keep one number per entry."""
        for name, value in vars(self).items():
            if isinstance(value, Stateful):
                value.expand(size)
            elif isinstance(value, (float, Tensor)) and name not in self.SHARED:
                setattr(self, name, numbers.expanded(value, size))

    def take(self, now: Mapping[str, Number], where: Mask) -> None:
        """Replace numbers there, and keep what they were elsewhere."""
        for name, number in now.items():
            setattr(self, name, numbers.choose(where, number, getattr(self, name)))


class History(Stateful):
    """The past of a constraint: steps, open gates, and skipped measurements."""

    def __init__(self) -> None:
        self.steps = 0
        self.visits: Number = 0.0  # of these, the steps that measured an entry
        self.active_steps = 0
        self.skipped = 0
        self.is_blind = False  # the latest step saw nothing finite
        self.met_for: Number = 0.0  # steps in a row

    def step(self, weight: Number, seen: Mask, met_for: Number) -> None:
        """Count a step with the weight that acted."""
        self.steps += 1
        self.active_steps += numbers.any_of(weight != 0)
        self.is_blind = not numbers.any_of(seen)
        self.visits = self.visits + 1.0 * seen
        self.met_for = met_for


class Stall(Stateful):
    """Comparison of two stretches of steps violated to the same side, the second twice as long.

    The multiplier integrates the violation, so over the second stretch it about doubles. If the
    mean violation is not a tenth smaller by then, although the weight is a tenth larger, more
    pressure does not help. Each entry of a vector has stretches of its own, of the steps that
    measured it; a new alpha begins a new run.

    Attributes:
        limit: 0, or after a stretch without progress ten times the weight at its end. A multiplier
            whose mu is found grows by shares of itself, and may grow so far until the next stretch
            ends, not less: where data or moments have only begun to move, little is said.
    """

    OF_STRETCHES = ("end", "total", "mean", "weight", "limit")

    def __init__(self) -> None:
        self.run: Number = 0.0  # steps in a row violated to the same side, with its sign
        self.end: Number = 0.0  # of the stretch that began halfway to it
        self.total: Number = 0.0
        self.mean: Number = 0.0  # violation of the last stretch
        self.weight: Number = 0.0  # at its end
        self.limit: Number = 0.0

    @property
    def is_stalled(self) -> bool:
        """Tell whether the latest stretch of some entry made no progress."""
        return numbers.any_of(self.limit > 0)

    def watch(self, excess: Number, seen: Mask, every: int, weight: Number) -> None:
        """Take in one step.

        Args:
            excess: the violation where it is one that the multiplier is free to push against (for
                an equality with its sign), 0 elsewhere.
            seen: where there is a violation of this step; elsewhere all stays as it is.
            every: steps per update of the multiplier.
            weight: lambda+ of the step.
        """
        first = float(max(STEPS, UPDATES * every))
        side = numbers.choose(excess > 0, 1.0, numbers.choose(excess < 0, -1.0, 0.0))
        goes_on = self.run * side > 0
        anew = {"run": side, "end": 2 * first, **dict.fromkeys(self.OF_STRETCHES[1:], 0.0)}
        self.take(anew, seen & (goes_on == 0))
        self.take({"run": self.run + side}, seen & goes_on)
        counts = seen & (abs(self.run) > first)
        self.take({"total": self.total + abs(excess)}, counts)
        ends = counts & (abs(self.run) >= self.end)
        if not numbers.any_of(ends):
            return
        mean, weight = self.total / (self.end / 2), abs(weight)
        is_stuck = (self.mean > 0) & (mean > SHARE * self.mean) & (SHARE * weight > self.weight)
        limit = numbers.choose(is_stuck, GROWTH * weight, 0.0)
        found = {"limit": limit, "mean": mean, "weight": weight}
        self.take({**found, "total": 0.0, "end": 2 * self.end}, ends)


def is_met(settings: Settings, c: Number, more: Number = 0.0) -> Mask:
    """Tell whether the violation is at most the tolerance, or `more` than that."""
    return (abs(c) if settings.sense == "==" else c) <= settings.tolerance + more


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

    SHARED = ("mu",)

    def __init__(self, multiplier: Number, mu: float, auto: Any) -> None:  # noqa: ANN401
        self.multiplier = multiplier
        self.mu: Number = mu
        self.auto: Any = auto  # an `Auto` of `torch_alm.auto`, which finds mu, or None
        self.weight = multiplier
        self.value: Number = math.nan
        self.violation: Number = math.nan
        self.level: Number = math.nan  # the alpha that was last measured against
        self.filter: list[Any] = []
        self.rules: list[Any] = []
        self.history = History()
        self.stall = Stall()

    def is_waiting(self, settings: Settings) -> bool:
        """Tell whether some rule has mu act as 0 now, and nothing updated."""
        return any(rule.is_waiting(self.history.steps) for rule in settings.rules)

    def is_limited(self, settings: Settings) -> bool:
        """Tell whether some entry is at the limit of a rule."""
        return any(rule.is_limiting(self.multiplier) for rule in settings.rules)

    def preview(self, found: Mean, settings: Settings) -> Preview:
        """Look at the step that this mean would make; nothing is remembered."""
        c, kept = numbers.beyond(settings.alpha, settings.sense, found.value), self.filter
        seen = numbers.only_finite(found.seen, c)
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

    def step(self, found: Mean, settings: Settings, response: Response | None) -> Preview:
        """Take one step: the weight, and on every `every`-th the multiplier.

        What a filter or rule of the user's may refuse is computed before anything changes. The
        response of the optimizer, if it was seen, is for a mu that is found.
        """
        now = self.preview(found, settings)
        waits = self.is_waiting(settings)
        is_due = not waits and now.acts & ((self.history.visits + 1) % settings.every == 0)
        c = numbers.choose(now.seen, now.violation, self.violation)
        met_for = (self.history.met_for + 1) * is_met(settings, c)
        met_for = numbers.choose(now.seen, met_for, self.history.met_for)
        ruled = self._ruled(now, is_due, c, met_for, settings)
        self._take(now, found, c, settings)
        self.history.step(now.weight, now.seen, met_for)
        if self.auto is not None:
            self._find(now.acts, settings, response)
        else:
            self.multiplier, self.mu, self.rules = ruled
        self._watch_for_stall(now.seen, settings, is_free=not waits)
        return now

    def _take(self, now: Preview, found: Mean, c: Number, settings: Settings) -> None:
        """Remember what was seen, and the weight that acts."""
        if numbers.any_of(self.level != settings.alpha):
            self.stall = Stall()
        self.filter, self.weight, self.violation = now.memory, now.weight, c
        self.level = settings.alpha + 0.0 * self.multiplier
        self.value = numbers.choose(now.seen, found.value, self.value)

    def _watch_for_stall(self, seen: Mask, settings: Settings, *, is_free: bool) -> None:
        """Compare violations, where the multiplier is free to push against them."""
        is_free = is_free and numbers.any_of(self.mu > 0) and not self.is_limited(settings)
        met = is_met(settings, self.violation)
        excess = numbers.choose(met, 0.0, self.violation) if is_free else 0.0 * self.violation
        every = settings.every if self.auto is None else self.auto.every
        self.stall.watch(excess, seen, every, self.weight)

    def _find(self, seen: Mask, settings: Settings, response: Response | None) -> None:
        """Let mu follow what was seen; lambda, too, up to the limit where more does not help."""
        added = self.auto.step(self.violation, seen, response)
        self.mu, limit = self.auto.mu, self.stall.limit
        grown = numbers.projected(self.multiplier + added, settings.sense)
        is_beyond = (limit > 0) & (abs(grown) > limit) & (abs(grown) > abs(self.multiplier))
        self.multiplier = numbers.choose(is_beyond, self.multiplier, grown)

    def _ruled(
        self, now: Preview, is_due: Mask, c: Number, met_for: Number, settings: Settings
    ) -> tuple[Number, Number, list[Any]]:
        """Return lambda, mu and the memories that the rules make of lambda+ where it is due."""
        kept = _memories(settings.rules, self.rules) if settings.rules else []
        if not settings.rules or not numbers.any_of(is_due):
            return numbers.choose(is_due, now.weight, self.multiplier), self.mu, kept
        assert isinstance(self.mu, (int, float))  # one that is found takes no rules
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


def _memories(users: Sequence[Filter | Rule], saved: Iterable[Any]) -> list[Any]:
    """Pair the name of each filter or rule with the memory saved under it, or with a first one."""
    left, found = list(saved), list[Any]()
    for user in users:
        name = type(user).__name__
        at = next((i for i, each in enumerate(left) if each[0] == name), None)
        found.append([name, user.init()] if at is None else left.pop(at))
    return found
