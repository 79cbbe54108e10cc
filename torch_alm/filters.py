"""Filters: which violation counts when measurements are noisy.

The multiplier is cut off at zero, so that noise pushes it up freely and down only as far as that. A
filter stands between the two: `ALMConstraint(..., filter=Mean(8))`. Multiplier, weight and the
penalty's gradient follow one filtered violation. One of your own is a `Filter` with the functions
`init` and `update`, and `moved` where a new alpha is not to begin it anew. A setting outside its
range raises a `ValueError`.
"""

import math
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from torch_alm._constraint import numbers, settings
from torch_alm._constraint.numbers import Mask, Number
from torch_alm._constraint.settings import Filter, Reading

__all__ = ["EMA", "Filter", "Mean", "Reading"]


@final
@dataclass(frozen=True)
class Mean(Filter):
    """The mean violation of the last steps, cut where it may be noise.

    With W = `window` (of as many steps as there are, at first), k = `deadband` and the sample
    standard deviation sd, a positive mean c becomes max(c - k sd / sqrt(W), 0); c <= 0 counts in
    full, so that growth is cut and release is not. For `==` both signs are cut. Entries of a vector
    have a window each, of the steps that measured them.

    Args:
        window: how many steps, at least 1.
        deadband: how many standard errors, at least 0; needs a window of 2 or more.

    Cost: `window` numbers per multiplier.

    Example:
        >>> from torch_alm import ALMConstraint
        >>> constraint = ALMConstraint(None, alpha=1.0, mu=0.5, filter=Mean(2))
        >>> for value in (0.0, 0.5):  # violated by 1 and 0.5
        ...     constraint.observe(value)
        ...     _ = constraint.step()
        >>> constraint.metrics()["violation"]
        0.75
    """

    window: int
    deadband: float = 0.0

    def __post_init__(self) -> None:
        settings.settle(
            self,
            window=settings.count(1),
            deadband=settings.Limit(
                numbers.to_float, _is_deadband, "at least 0, and needs a window of 2 steps or more"
            ),
        )

    def init(self) -> Any:  # noqa: ANN401
        """Return an empty history: floats, oldest first, or rows with `nan` for none yet."""
        return []

    def update(self, reading: Reading, memory: Any) -> tuple[Number, Any]:  # noqa: ANN401
        """Take in one step; entries that it did not see keep the history they had."""
        c, seen, sense = reading
        if isinstance(c, Tensor):
            history = _shift(memory, c, seen, self.window)
            return _cut(history, self.deadband, is_equality=sense == "=="), history
        history = [*memory, c][-self.window :] if seen else memory[-self.window :]
        mean = sum(history) / len(history) if history else math.nan
        if self.deadband and (mean > 0 or sense == "=="):
            entry = torch.tensor(history, dtype=torch.float64, device="cpu")
            mean = _cut(entry, self.deadband, is_equality=sense == "==").item()
        return mean, history

    def moved(self, memory: Any, by: Number) -> Any:  # noqa: ANN401
        """Return the history as if every violation had been so much larger."""
        return memory + by if isinstance(memory, Tensor) else [c + by for c in memory]


@final
@dataclass(frozen=True)
class EMA(Filter):
    """The exponential mean of the violations, with a memory of about 1 / (1 - decay) steps.

    It is divided by the weights that it holds so far, so that the first steps are not drawn to 0.

    Args:
        decay: the share of the old mean that is kept per step, in [0, 1).

    Example:
        >>> from torch_alm import ALMConstraint
        >>> constraint = ALMConstraint(None, alpha=1.0, mu=0.5, filter=EMA(0.5))
        >>> for value in (0.0, 0.75):  # violated by 1 and 0.25
        ...     constraint.observe(value)
        ...     _ = constraint.step()
        >>> constraint.metrics()["violation"]  # (0.25 * 1 + 0.5 * 0.25) / 0.75
        0.5
    """

    decay: float

    def __post_init__(self) -> None:
        limit = settings.number(lambda share: 0 <= share < 1, "at least 0, below 1")
        settings.settle(self, decay=limit)

    def init(self) -> Any:  # noqa: ANN401
        """Return no mean yet, and the sum of its weights."""
        return [0.0, 0.0]

    def update(self, reading: Reading, memory: Any) -> tuple[Number, Any]:  # noqa: ANN401
        """Take in one step; entries that it did not see keep the mean they had."""
        (c, seen, _), (old, mass) = reading, memory
        mean = numbers.choose(seen, self.decay * old + (1 - self.decay) * c, old)
        mass = numbers.choose(seen, self.decay * mass + (1 - self.decay), mass)
        is_known = isinstance(mean, Tensor) or mass  # 0 / 0 is nan for a tensor
        return mean / mass if is_known else math.nan, [mean, mass]

    def moved(self, memory: Any, by: Number) -> Any:  # noqa: ANN401
        """Return the sums as if every violation had been so much larger."""
        mean, mass = memory
        return [mean + by * mass, mass]


def _is_deadband(width: float, before: settings.Given) -> bool:
    return width == 0 or (0 < width < math.inf and before["window"] > 1)


def _shift(history: Any, c: Tensor, seen: Mask, window: int) -> Tensor:  # noqa: ANN401
    """Put `c` at the end of the history, and move on only where `c` was seen."""
    nothing = c.new_full((window, *c.shape), math.nan)
    held = torch.cat([nothing, history])[-window:] if len(history) else nothing
    return torch.where(torch.as_tensor(seen, device="cpu"), torch.cat([held[1:], c[None]]), held)


def _cut(history: Tensor, deadband: float, *, is_equality: bool) -> Tensor:
    """Return the mean over dim 0, without what may be noise on the side that is not met."""
    mean = history.nanmean(0)
    if not deadband:
        return mean
    count = (~history.isnan()).sum(0)
    deviations = torch.where(history.isnan(), torch.zeros_like(history), history - mean)
    noise = deadband * (deviations.square().sum(0) / ((count - 1).clamp(min=1) * count)).sqrt()
    if is_equality:
        return mean.sign() * (mean.abs() - noise).clamp(min=0)
    return torch.maximum(mean - noise, mean.clamp(max=0))
