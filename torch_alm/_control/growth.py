"""When mu grows: only if the last stretch made too little progress, and never without a limit."""

import math
from dataclasses import dataclass
from typing import final

from torch_alm._control import numbers


@final
@dataclass(frozen=True)
class PenaltyGrowth:
    r"""Let mu grow where the multiplier alone makes too little progress.

    At every update the residual

        r = |lambda+ - lambda| / mu = |max(c, -lambda / mu)|     (the largest entry of a vector)

    is compared with that of the update before. It is zero only where the constraint is met and
    complementary, so both are judged. If r is above `progress` times the last one, and above the
    constraint's `tolerance`, mu becomes the smaller of `factor * mu` and `limit`. With a window the
    violation in it is the filtered one; in noise without a window or a tolerance, no residual keeps
    shrinking and mu goes to its limit.

    Args:
        factor: what mu is multiplied by, above 1.
        limit: the largest mu, such as 1e3 times the first. There is no default: without a limit an
            infeasible problem would send mu to infinity.
        progress: the share of the last residual that counts as progress, in (0, 1).

    Raises:
        ValueError: if one of them is outside its range.

    Source: the test of ALGENCAN (Birgin and Martinez 2014, algorithm 4.1) and of NLopt's AUGLAG.

    Example:
        >>> from torch_alm import ALMConstraint
        >>> constraint = ALMConstraint(
        ...     None, alpha=1.0, mu=0.1, growth=PenaltyGrowth(factor=10.0, limit=5.0)
        ... )
        >>> for value in (0.0, 0.6, 0.5, 0.4):  # violated by 1, 0.4, 0.5, 0.6
        ...     constraint.observe(value)
        ...     _ = constraint.step()
        ...     print(constraint.mu)
        0.1
        0.1
        1.0
        5.0
    """

    factor: float
    limit: float
    progress: float = 0.5

    def __post_init__(self) -> None:
        """Convert and check all three."""
        rules = {
            "factor": (1.0, math.inf, "above 1"),
            "limit": (0.0, math.inf, "positive and finite"),
            "progress": (0.0, 1.0, "between 0 and 1"),
        }
        for name, (low, high, rule) in rules.items():
            value = numbers.tried(numbers.single, getattr(self, name))
            if not (isinstance(value, float) and low < value < high):
                raise ValueError(
                    f"PenaltyGrowth: {name} is {value!r}; it must be {rule}. Did you mean to leave "
                    "`growth` out?"
                )
            object.__setattr__(self, name, value)

    def grown(self, mu: float, residual: float, before: float, tolerance: float) -> float:
        """Mu for the next stretch, given the residuals of this update and of the one before."""
        if residual <= max(self.progress * before, tolerance):
            return mu
        return max(mu, min(self.factor * mu, self.limit))
