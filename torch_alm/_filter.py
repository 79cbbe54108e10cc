"""The violation that counts: a mean over the last steps, cut where it is within the noise."""

import torch
from torch import Tensor

from torch_alm._numbers import Number, Truth


class Window:
    """The last violations of each entry of a constraint.

    Entries that were not seen in a step keep what they had. A window of 1 remembers nothing.
    """

    def __init__(self, history: list[Tensor] | None = None) -> None:
        """Start empty, or from `state()`."""
        self._history = [c.clone() for c in history or []]

    def state(self) -> list[Tensor]:
        """Copies of the violations held, oldest first; `nan` where an entry has none yet."""
        return [c.clone() for c in self._history]

    def push(self, c: Number, seen: Truth, window: int, deadband: float) -> Number:
        """Take in this step's violations and return the filtered ones."""
        self._history = [] if window == 1 else self._with(c, seen, window)
        return self._filtered(c, self._history, deadband)

    def peek(self, c: Number, seen: Truth, window: int, deadband: float) -> Number:
        """What `push` would return."""
        history = [] if window == 1 else self._with(c, seen, window)
        return self._filtered(c, history, deadband)

    def _with(self, c: Number, seen: Truth, window: int) -> list[Tensor]:
        """The history with `c` at its end, shifted only where `c` was seen."""
        newest = torch.as_tensor(c, dtype=torch.float64)
        nothing = torch.full_like(newest, float("nan"))
        held = [nothing] * (window - len(self._history)) + self._history[-window:]
        pairs = zip([*held[1:], newest], held, strict=True)
        return [torch.where(torch.as_tensor(seen), new, old) for new, old in pairs]

    @staticmethod
    def _filtered(c: Number, history: list[Tensor], deadband: float) -> Number:
        if not history:
            return c
        filtered = cut(torch.stack(history), deadband)
        return filtered if isinstance(c, Tensor) else filtered.item()


def cut(history: Tensor, deadband: float) -> Tensor:
    """Mean over dim 0, a positive one reduced by `deadband` standard errors but not below 0."""
    mean = history.nanmean(0)
    if deadband == 0:
        return mean
    count = (~history.isnan()).sum(0)
    deviations = torch.where(history.isnan(), torch.zeros_like(history), history - mean)
    variance = deviations.square().sum(0) / (count - 1).clamp(min=1)
    error = deadband * (variance / count).sqrt()
    return torch.maximum(mean - error, mean.clamp(max=0))
