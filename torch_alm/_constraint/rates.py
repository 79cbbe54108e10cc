"""A rule for mu per multiplier, of which each calibration reads one."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Size, Tensor

from torch_alm._constraint.aim import Aim
from torch_alm._constraint.auto import EARLY, EVERY, Auto, Response
from torch_alm._constraint.numbers import Mask, Number
from torch_alm._constraint.response import Sides
from torch_alm._constraint.stateful import Stateful


class Rates(Stateful):
    """One `Auto` per multiplier: for one a number each, for several a tensor with an entry each.

    The gradient of an entry costs a backward pass. Of several, one is taken per calibration, in
    turn: as many passes as one number needs, and mu of each is as much older as there are entries.
    """

    def __init__(self) -> None:
        """Start with one, of which nothing is known."""
        self.size, self.each, self.aimed = Size(), [Auto()], Aim()
        self.is_owed = False  # a step that was to bring a gradient had none, as one with a nan

    def expand(self, size: Size) -> None:
        """Keep one per entry; as many as there are stay what they are."""
        if size == self.size:
            return
        self.size = size
        self.each = [copy.copy(self.each[0]) for _ in range(size.numel())]

    def state(self) -> dict[str, Any]:
        """Return the numbers, each with an entry per multiplier."""
        names = vars(self.each[0])
        found = {name: self._joined([vars(auto)[name] for auto in self.each]) for name in names}
        return {**found, "is_owed": self.is_owed, "aim": self.aimed.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`."""
        self.aimed.load(state["aim"])
        self.is_owed = bool(state["is_owed"])
        for name, now in vars(self.each[0]).items():
            for auto, number in zip(self.each, self._apart(state[name]), strict=True):
                setattr(auto, name, type(now)(number))

    @property
    def _count(self) -> int:
        return max(auto.count for auto in self.each)

    @property
    def wants_gradient(self) -> bool:
        """Tell whether a gradient is needed: early in each step, later in every 20th.

        Or, where that one had none, in the next that has.
        """
        is_due = self._count < max(EARLY, len(self.each)) or self._count % EVERY == 0
        return is_due or self.is_owed

    @property
    def entry(self) -> int:
        """The entry whose gradient that is."""
        is_early = self._count < max(EARLY, len(self.each))
        return (self._count if is_early else self._count // EVERY) % len(self.each)

    @property
    def mu(self) -> Number:
        """The penalty of each; 0 where no gradient has been seen."""
        return self._joined([auto.mu for auto in self.each])

    def push(self, c: Number) -> Number:
        """Return mu (c~ + d) for this violation; nothing is remembered.

        d is what the last retain step was to add to c where it was aimed against, else 0: the gate
        does not close before a step that opens it again.
        """
        seen = [copy.copy(auto).see(x) for auto, x in zip(self.each, self._apart(c), strict=True)]
        return self._joined([auto.mu * (auto.filtered + self.aimed.ahead) for auto in seen])

    def aim(self, sides: Sides | None, weight: float) -> float:
        """Return how much of a finished forget step to make, for one number."""
        (auto,) = self.each
        self.aimed.see(auto.before)
        return self.aimed.share(sides, weight)

    def step(self, c: Number, seen: Mask, response: Response | None) -> Number:
        """Take one step, where something was seen; return what it adds to the multipliers."""
        self.aimed.ahead = 0.0  # the weight of this step has been found; `aim` looks further
        entry, added = self.entry, list[float]()
        self.is_owed = self.wants_gradient and response is None
        rows = zip(self.each, self._apart(c), self._apart(seen), strict=True)
        for i, (auto, x, is_seen) in enumerate(rows):
            if is_seen:
                auto.see(x)
                if response is not None and i == entry:
                    auto.calibrate(response)
            added.append(auto.advance() if is_seen else 0.0)
        return self._joined(added)

    def _apart(self, given: Number | Mask) -> list[Any]:
        """List the entries; a plain one is that of all."""
        if isinstance(given, Tensor):
            return given.reshape(-1).tolist()
        return [given] * len(self.each)

    def _joined(self, found: list[float]) -> Number:
        """Make of the entries what a multiplier is: a float, or a tensor of float64."""
        if self.size == ():
            return found[0]
        return torch.tensor(found, dtype=torch.float64).reshape(self.size)
