"""lambda: the weight it gives in a step, what is remembered of it, and what it has seen."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from torch import Size, Tensor

from torch_alm._constraint import numbers
from torch_alm._constraint.loop import Response
from torch_alm._constraint.numbers import Mask, Number
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
        self.take({**vars(Stall()), "end": 2 * first}, seen & (self.run * side <= 0))
        self.take({"run": self.run + side}, seen)
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


class State(Stateful):
    """All that a constraint remembers: floats, or float64 tensors with one entry per multiplier.

    A step makes another state of it, so that one that fails has changed nothing.

    Attributes:
        multiplier: lambda, as stored.
        mu: the step size; one number, unless it is found.
        auto: an `Auto` of `torch_alm.auto`, which finds mu, or None.
        weight: lambda+ of the latest step.
        value, violation: the latest ones; the violation is filtered.
        level: the alpha that was last measured against.
        filter, rules: their memories, by name.
        steps, active_steps, skipped: counts, of all steps, of those with a weight not 0, and of
            measurements and updates that were not finite.
        is_blind: whether the latest step saw nothing finite.
        visits: the steps that measured an entry.
        met_for: those of them in a row, up to the latest, in which it was met.
    """

    SHARED = ("mu",)

    def __init__(self, multiplier: Number, mu: float, auto: Any) -> None:  # noqa: ANN401
        self.multiplier = self.weight = multiplier
        self.mu: Number = mu
        self.auto: Any = auto
        self.value = self.violation = self.level = math.nan
        self.filter, self.rules = list[Any](), list[Any]()
        self.steps = self.active_steps = self.skipped = 0
        self.is_blind = False
        self.visits = self.met_for = 0.0
        self.stall = Stall()

    def is_waiting(self, settings: Settings) -> bool:
        """Tell whether some rule has mu act as 0 now, and nothing updated."""
        return any(rule.is_waiting(self.steps) for rule in settings.rules)

    def is_limited(self, settings: Settings) -> bool:
        """Tell whether some entry is at the limit of a rule."""
        return any(rule.is_limiting(self.multiplier) for rule in settings.rules)

    def weighed(self, found: Mean, settings: Settings) -> tuple["State", Number, Mask, Mask]:
        """Find the weight of one more step, in a state of its own that the filter has moved on.

        Returns it with c, filtered, and where c was seen and where it acts: all stays finite.
        """
        now = copy.copy(self)
        c, seen = now._filtered(found, settings)
        mu = 0.0 if self.is_waiting(settings) else self.mu
        pressure = mu * c if self.auto is None else self.auto.push(c)
        weight = numbers.projected(self.multiplier + pressure, settings.sense)
        acts = numbers.only_finite(seen, weight)
        now.weight = numbers.choose(acts, weight, self.multiplier)
        return now, c, seen, acts

    def after(self, found: Mean, settings: Settings, response: Response | None) -> "State":
        """Return the state after one more step; this one stays as it is.

        Args:
            found: what was measured.
            settings: those of now.
            response: for a mu that is found, the optimizer's, where it was looked at.
        """
        now, c, seen, acts = self.weighed(found, settings)
        overflows = acts is not found.seen and numbers.any_of(acts != found.seen)
        now.skipped += found.bad + overflows
        now._remember(found, c, seen, settings)
        is_free = not self.is_waiting(settings)
        if self.auto is not None:
            now._find(acts, settings, response)
        elif is_free:
            now._update(acts, settings)
        now._watch_for_stall(seen, settings, is_free=is_free)
        return now

    def _filtered(self, found: Mean, settings: Settings) -> tuple[Number, Mask]:
        """Return the violation that counts, and where there is one."""
        c = numbers.beyond(settings.alpha, settings.sense, found.value)
        seen = numbers.only_finite(found.seen, c)
        if settings.filter is None:
            return c, seen
        ((name, memory),) = _memories([settings.filter], self.filter)
        by = settings.alpha - self.level  # which has changed since it was measured against
        by = numbers.choose(by == by, numbers.beyond(0.0, settings.sense, -by), 0.0)
        if numbers.any_of(by != 0):
            memory = settings.filter.moved(memory, by)
        c, memory = settings.filter.update(Reading(c, seen, settings.sense), memory)
        self.filter = [[name, memory]]
        return c, numbers.only_finite(seen, c)

    def _remember(self, found: Mean, c: Number, seen: Mask, settings: Settings) -> None:
        """Count a step, and what it saw."""
        self.steps += 1
        self.active_steps += numbers.any_of(self.weight != 0)
        self.is_blind = not numbers.any_of(seen)
        if numbers.any_of(self.level != settings.alpha):
            self.stall = Stall()
        self.level = settings.alpha + 0.0 * self.multiplier
        self.take({"value": found.value, "violation": c, "visits": self.visits + 1}, seen)
        self.take({"met_for": (self.met_for + 1) * is_met(settings, c)}, seen)

    def _watch_for_stall(self, seen: Mask, settings: Settings, *, is_free: bool) -> None:
        """Compare violations, where the multiplier is free to push against them."""
        is_free = is_free and numbers.any_of(self.mu > 0) and not self.is_limited(settings)
        met = is_met(settings, self.violation)
        excess = numbers.choose(met, 0.0, self.violation) if is_free else 0.0 * self.violation
        every = settings.every if self.auto is None else self.auto.every
        self.stall = copy.copy(self.stall)
        self.stall.watch(excess, seen, every, self.weight)

    def _find(self, seen: Mask, settings: Settings, response: Response | None) -> None:
        """Let mu follow what was seen; lambda, too, up to the limit where more does not help."""
        self.auto, limit = copy.copy(self.auto), self.stall.limit
        added = self.auto.step(self.violation, seen, response)
        self.mu = self.auto.mu
        grown = numbers.projected(self.multiplier + added, settings.sense)
        is_beyond = (limit > 0) & (abs(grown) > limit) & (abs(grown) > abs(self.multiplier))
        self.multiplier = numbers.choose(is_beyond, self.multiplier, grown)

    def _update(self, acts: Mask, settings: Settings) -> None:
        """Store what the rules make of lambda+, where the cadence says so."""
        is_due = acts & (self.visits % settings.every == 0)
        if not numbers.any_of(is_due):
            return
        assert isinstance(self.mu, (int, float))  # one that is found takes no rules
        update = Update(
            stored=self.weight,
            mu=self.mu,
            before=self.multiplier,
            weight=self.weight,
            violation=self.violation,
            seen=is_due,
            met_for=self.met_for,
            tolerance=settings.tolerance,
        )
        before, self.rules = _memories(settings.rules, self.rules), list[Any]()
        for rule, (name, memory) in zip(settings.rules, before, strict=True):
            update, memory = rule.update(update, memory)
            self.rules.append([name, memory])
        self.multiplier = numbers.choose(is_due, update.stored, self.multiplier)
        self.mu = update.mu


def _memories(users: Sequence[Filter | Rule], saved: Iterable[Any]) -> list[Any]:
    """Pair the name of each filter or rule with the memory saved under it, or with a first one."""
    left, found = list(saved), list[Any]()
    for user in users:
        name = type(user).__name__
        at = next((i for i, each in enumerate(left) if each[0] == name), None)
        found.append([name, user.init()] if at is None else left.pop(at))
    return found
