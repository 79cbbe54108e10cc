"""The memory of a constraint between two steps."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from torch import Size, Tensor

from torch_alm._constraint import numbers
from torch_alm._constraint.numbers import Mask, Number
from torch_alm._constraint.settings import Filter, Reading, Rule, Update

STEPS, UPDATES = 64, 8  # before the first stretch: a shorter run shows nothing
SHARE = 0.9  # above this share of the last stretch's mean violation, a stretch made no progress
GROWTH = 10.0  # of the weight in the stretch that follows
STATUSES = (  # worst first: a group is as well as its worst member
    "non_finite",
    "suspected_infeasible",
    "capped",
    "violated",
    "unstepped",
    "unmeasured",
    "satisfied",
    "released",
    "never_active",
)


class Stateful:
    """An object all of whose attributes are its state.

    A float is one number per multiplier and becomes a float64 tensor for several; so do not those
    in `SHARED`, nor whole numbers.
    """

    SHARED: ClassVar[tuple[str, ...]] = ()

    def state(self) -> dict[str, Any]:
        """Return everything remembered, sharing no memory; nothing of a part that is not there."""
        return {
            name: value.state() if isinstance(value, Stateful) else numbers.copy_to_host(value)
            for name, value in vars(self).items()
            if value is not None
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`, sharing no memory with it."""
        for name, value in vars(self).items():
            if isinstance(value, Stateful):
                value.load(state[name])
            elif value is not None:
                setattr(self, name, numbers.copy_to_host(state[name]))

    def expand(self, size: Size) -> None:
        """Keep one number per entry."""
        for name, value in vars(self).items():
            if isinstance(value, Stateful):
                value.expand(size)
            elif isinstance(value, (float, Tensor)) and name not in self.SHARED:
                setattr(self, name, numbers.expand(value, size))

    def replace_entries(self, now: Mapping[str, Number], where: Mask) -> None:
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
        is_begun: whether some run is longer than what comes before the first stretch.
        end: of the stretch that began halfway to it.
        total, mean: the violation so far, and that of the last stretch.
        weight: that at its end.
        limit: 0, or after a stretch without progress ten times the weight at its end. A multiplier
            whose mu is found grows by shares of itself, and may grow so far until the next stretch
            ends, not less: where data or moments have only begun to move, little is said.
    """

    def __init__(self) -> None:
        self.is_begun = False
        self.end: Number = 0.0
        self.total: Number = 0.0
        self.mean: Number = 0.0
        self.weight: Number = 0.0
        self.limit: Number = 0.0

    @property
    def is_stalled(self) -> bool:
        """Return whether the latest stretch of some entry made no progress."""
        return numbers.any_of(self.limit > 0)

    def watch(
        self, run: Number, violation: Number, seen: Mask, first: float, weight: Number
    ) -> "Stall":
        """Return the comparison after one step.

        Args:
            run: the steps in a row violated to the same side, with this one.
            violation: of this step.
            seen: where there is one; elsewhere all stays as it is.
            first: the steps before the first stretch.
            weight: lambda+ of the step.
        """
        now = copy.copy(self)
        now.replace_entries({**vars(Stall()), "end": 2 * first}, seen & (run <= first + 1))
        now.is_begun = numbers.any_of(run > first)
        counts = seen & (run > first)
        now.replace_entries({"total": now.total + abs(violation)}, counts)
        ends = counts & (run >= now.end)
        if numbers.any_of(ends):
            mean, weight = now.total / (now.end / 2), abs(weight)
            is_stuck = (now.mean > 0) & (mean > SHARE * now.mean) & (SHARE * weight > now.weight)
            limit = numbers.choose(is_stuck, GROWTH * weight, 0.0)
            found = {"limit": limit, "mean": mean, "weight": weight}
            now.replace_entries({**found, "total": 0.0, "end": 2 * now.end}, ends)
        return now


class State(Stateful):
    """The memory of a constraint: floats, or float64 tensors with one entry per multiplier.

    A step returns another state, so that a step that fails has changed nothing.

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
        run: those in a row that were violated to the same side.
    """

    SHARED = ("mu",)

    def __init__(self, multiplier: Number, mu: float, auto: Any) -> None:  # noqa: ANN401
        self.multiplier = self.weight = multiplier
        self.mu: Number = mu
        self.auto: Any = auto
        self.value: Number = math.nan
        self.violation: Number = math.nan
        self.level: Number = math.nan
        self.filter, self.rules = list[Any](), list[Any]()
        self.steps = self.active_steps = self.skipped = 0
        self.is_blind = False
        self.visits: Number = 0.0
        self.met_for: Number = 0.0
        self.run: Number = 0.0
        self.stall = Stall()

    def is_waiting(self, rules: Sequence[Rule]) -> bool:
        """Return whether some rule has mu act as 0 now, and nothing updated."""
        return any(rule.is_waiting(self.steps) for rule in rules)

    def is_limited(self, rules: Sequence[Rule]) -> bool:
        """Return whether some entry is at the limit of a rule."""
        return any(rule.is_limiting(self.multiplier) for rule in rules)

    def filter_violation(self, by: Filter, reading: Reading, risen: Number) -> Number:
        """Return the violation that counts, `risen` by a new alpha since it was measured."""
        ((name, memory),) = _memories([by], self.filter)
        risen = numbers.choose(risen == risen, risen, 0.0)
        if numbers.any_of(risen != 0):
            memory = by.moved(memory, risen)
        c, memory = by.update(reading, memory)
        self.filter = [[name, memory]]
        return c

    def apply(self, rules: Sequence[Rule], is_due: Mask, tolerance: float) -> None:
        """Store what the rules make of the weight."""
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
            tolerance=tolerance,
        )
        before, self.rules = _memories(rules, self.rules), list[Any]()
        for rule, (name, memory) in zip(rules, before, strict=True):
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
