"""A constraint's controller by hand, one entry after the other: what the library must equal.

Nothing of torch_alm and nothing of torch is imported here. Filters and rules are written as in the
literature, as words and numbers: `("mean", 4, 0.7)`, `("leak", 0.3, 2)`.
"""

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Entry:
    """The memory of one multiplier."""

    multiplier: float
    weight: float = 0.0
    violation: float = math.nan
    history: list[float] = field(default_factory=list)
    due: bool = False  # the latest step is the K-th, 2K-th ... that measured it
    met_for: int = 0
    residual: float = math.inf  # of the last update
    before: float = math.nan  # the violation at the last update


@dataclass
class Controller:
    """lambda+ = [lambda + mu c]_+, a cadence, a filter, and rules in their order."""

    entries: list[Entry]
    alpha: float
    mu: float
    sense: str
    every: int
    tolerance: float
    filter: tuple[Any, ...] | None
    rules: list[tuple[Any, ...]]
    steps: int = 0

    def step(self, values: list[float | None]) -> list[float]:
        """One step with a value per entry, None where nothing finite was measured."""
        warm_up = max([rule[1] for rule in self.rules if rule[0] == "warm up"], default=0)
        mu = 0.0 if self.steps < warm_up else self.mu
        self.steps += 1
        for entry, value in zip(self.entries, values, strict=True):
            entry.weight, entry.due_entry = entry.multiplier, False
            if value is not None:
                self.measure(entry, value, mu)
                entry.due_entry = len(entry.history) % self.every == 0
        if self.steps > warm_up:
            self.update()
        return [entry.weight for entry in self.entries]

    def assign(self, *, by: float, mu: float, every: int, multiplier: float) -> None:
        """Set alpha `by` higher and the rest anew: history is as if measured against this alpha."""
        self.alpha, self.mu, self.every = self.alpha + by, mu, every
        by = -by if self.sense == "<=" else by
        for entry in self.entries:
            entry.multiplier, entry.history = multiplier, [c + by for c in entry.history]

    def measure(self, entry: Entry, value: float, mu: float) -> None:
        c = value - self.alpha if self.sense == "<=" else self.alpha - value
        entry.history.append(c)
        entry.violation = c = self.filtered(entry.history)
        is_met = (abs(c) if self.sense == "==" else c) <= self.tolerance
        entry.met_for = entry.met_for + 1 if is_met else 0
        weight = entry.multiplier + mu * c
        entry.weight = weight if self.sense == "==" else max(weight, 0.0)

    def filtered(self, history: list[float]) -> float:
        if self.filter is None:
            return history[-1]
        if self.filter[0] == "ema":
            mean = mass = 0.0
            for c in history:
                mean = self.filter[1] * mean + (1 - self.filter[1]) * c
                mass = self.filter[1] * mass + (1 - self.filter[1])
            return mean / mass
        _, window, deadband = self.filter
        last = history[-window:]
        mean = sum(last) / len(last)
        variance = sum((c - mean) ** 2 for c in last) / max(len(last) - 1, 1)
        noise = deadband * math.sqrt(variance / len(last))
        if self.sense == "==":
            return math.copysign(max(abs(mean) - noise, 0.0), mean)
        return max(mean - noise, 0.0) if mean > 0 else mean

    def update(self) -> None:
        if not any(entry.due_entry for entry in self.entries):
            return
        due = [entry for entry in self.entries if entry.due_entry]
        last = max(entry.residual for entry in due)
        for entry in due:
            entry.residual = abs(entry.weight - entry.multiplier) / (self.mu or 1.0)
        residual = max(entry.residual for entry in due)
        for entry in self.entries:
            if entry.due_entry:
                entry.multiplier = self.stored(entry)
                entry.before = entry.violation
        for rule in self.rules:
            if rule[0] == "growth" and residual > max(0.5 * last, self.tolerance):
                self.mu = max(self.mu, min(rule[1] * self.mu, rule[2]))

    def stored(self, entry: Entry) -> float:
        stored = entry.weight
        for name, *numbers in self.rules:
            if name == "hold" and entry.before != 0:
                ratio = entry.violation / entry.before
                if 0 < ratio <= numbers[0] and abs(stored) > abs(entry.multiplier):
                    stored = entry.multiplier
            if name == "leak" and entry.met_for >= numbers[1]:
                stored = (1 - numbers[0]) * stored
            if name == "cap":
                stored = math.copysign(min(abs(stored), numbers[0]), stored)
        return stored
