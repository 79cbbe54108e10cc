"""Rules: what the multiplier, and mu, become after a step's weight is known.

The weight that acts is always [lambda + mu c]_+. By default an update stores all of it; a rule
stores less, limits it, waits, or lets mu grow: `ALMConstraint(..., rules=[Hold(0.9), Cap(5.0)])`.
Rules run in the order given, each on what the one before it has left. One of your own is a `Rule`
that overrides `update`, and `init` if it has to remember something. A setting outside its range
raises a `ValueError`.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, final

from torch import Tensor

from torch_alm._constraint import numbers, settings
from torch_alm._constraint.numbers import Number
from torch_alm._constraint.settings import Rule, Sense, Update

__all__ = ["Cap", "Hold", "Leak", "PenaltyGrowth", "Rule", "Update", "WarmUp"]

SHARE = settings.number(lambda share: 0 < share <= 1, "above 0 and at most 1")


@final
@dataclass(frozen=True)
class Hold(Rule):
    """Let the multiplier wait while the violation is going: conditional integration.

    In an update whose violation has kept its sign and shrunk to `share` times that of the update
    before, or less, the multiplier does not grow. The weight still follows.

    Args:
        share: in (0, 1].

    Source: conditional integration against wind-up (Astrom and Hagglund 1995, section 3.5).

    Example:
        >>> from torch_alm import ALMConstraint
        >>> constraint = ALMConstraint(None, alpha=0.0, mu=1.0, rules=[Hold(0.5)])
        >>> for value in (-4.0, -2.0):  # halved
        ...     constraint.observe(value)
        ...     print(constraint.step(), constraint.multiplier)
        4.0 4.0
        6.0 4.0
    """

    share: float

    def __post_init__(self) -> None:
        settings.settle(self, share=SHARE)

    def init(self) -> Any:  # noqa: ANN401
        """Return no violation yet."""
        return math.nan

    def update(self, update: Update, memory: Any) -> tuple[Update, Any]:  # noqa: ANN401
        """Store the multiplier before where the violation, next to the one before, is going."""
        c, before = update.violation, update.before
        ratio = c / memory if isinstance(c, Tensor) or memory else math.nan
        is_going = (ratio > 0) & (ratio <= self.share) & (abs(update.stored) > abs(before))
        stored = numbers.choose(is_going, before, update.stored)
        return update._replace(stored=stored), numbers.choose(update.seen, c, memory)


@final
@dataclass(frozen=True)
class Leak(Rule):
    """Give a multiplier back while its constraint is met.

    Once the (filtered) violation has been at most the constraint's `tolerance` for `after` steps in
    a row, every update stores

        lambda = (1 - share) [lambda + mu c]_+

    instead of all of it, for lambda unwinds at the rate mu times the slack, of which a rate that
    must be 0.95 has 0.05. The weight that acts is not changed. Where a constraint binds at the
    optimum, the gate then opens and closes in place of settling. An equality has no leak.

    Args:
        share: what is given back per update, in (0, 1]; 1 drops the multiplier at once.
        after: steps in a row in which the constraint has to be met first, at least 1.

    Source: the leaky integrator of anti-windup control (Astrom and Hagglund 1995, section 3.5),
    here switched on by satisfaction.

    Example:
        >>> from torch_alm import ALMConstraint
        >>> constraint = ALMConstraint(None, alpha=1.0, mu=0.5, multiplier=1.0, rules=[Leak(0.5)])
        >>> constraint.observe(1.0)  # met
        >>> constraint.step(), constraint.multiplier
        (1.0, 0.5)
    """

    share: float
    after: int = 1
    senses: ClassVar[tuple[Sense, ...]] = (">=", "<=")

    def __post_init__(self) -> None:
        settings.settle(self, share=SHARE, after=settings.count(1))

    def update(self, update: Update, memory: Any) -> tuple[Update, Any]:  # noqa: ANN401
        """Store less where the constraint has been met for long enough."""
        is_met = update.met_for >= self.after
        stored = numbers.choose(is_met, (1 - self.share) * update.stored, update.stored)
        return update._replace(stored=stored), memory


@final
@dataclass(frozen=True)
class Cap(Rule):
    """Limit the stored multiplier (for `==`, its size); the weight may exceed it by mu c.

    A violated constraint whose limit is reached has the status `"capped"`: a limit that says
    nothing looks like convergence.

    Args:
        limit: above 0, in the units of the multiplier.
    """

    limit: float

    def __post_init__(self) -> None:
        settings.settle(self, limit=settings.number(lambda limit: limit > 0, "positive"))

    def update(self, update: Update, memory: Any) -> tuple[Update, Any]:  # noqa: ANN401
        """Store the nearest number in [-limit, limit]."""
        return update._replace(stored=numbers.clamp(update.stored, -self.limit, self.limit)), memory

    def is_limiting(self, multiplier: Number) -> bool:
        """Return whether some entry is at the limit."""
        return numbers.any_of(abs(multiplier) >= self.limit)


@final
@dataclass(frozen=True)
class WarmUp(Rule):
    """Watch first: in the first `steps` steps mu acts as 0 and nothing is updated.

    Values are observed and fill the filter; the multiplier stays, and the weight (and the penalty's
    gradient) is the multiplier.

    Args:
        steps: how many, at least 0; under a `DualOptimizer` with `probe_every` measured ones.
    """

    steps: int

    def __post_init__(self) -> None:
        settings.settle(self, steps=settings.count(0))

    def is_waiting(self, steps: int) -> bool:
        """Return whether the first steps are not over yet."""
        return steps < self.steps


@final
@dataclass(frozen=True)
class PenaltyGrowth(Rule):
    r"""Let mu grow where the multiplier alone makes too little progress.

    At every update the residual

        r = |lambda+ - lambda| / mu = |max(c, -lambda / mu)|

    (the largest of the entries it is of) is compared with what the largest of the same entries was
    at their last updates; it is zero only where the constraint is met and
    complementary. If r is above `progress` times the last one, and above the constraint's
    `tolerance`, mu becomes the smaller of `factor * mu` and `limit`. In noise, without a filter or
    a tolerance, no residual keeps shrinking and mu goes to its limit.

    Args:
        factor: what mu is multiplied by, above 1.
        limit: the largest mu, such as 1e3 times the first. There is no default: without a limit an
            infeasible problem would send mu to infinity.
        progress: the share of the last residual that counts as progress, in (0, 1).

    Source: the test of ALGENCAN (Birgin and Martinez 2014, algorithm 4.1) and of NLopt's AUGLAG.

    Example:
        >>> from torch_alm import ALMConstraint
        >>> growth = PenaltyGrowth(factor=10.0, limit=5.0)
        >>> constraint = ALMConstraint(None, alpha=1.0, mu=0.1, rules=[growth])
        >>> for value in (0.0, 0.6, 0.5):  # violated by 1, 0.4, 0.5
        ...     constraint.observe(value)
        ...     _ = constraint.step()
        >>> constraint.mu
        1.0
    """

    factor: float
    limit: float
    progress: float = 0.5

    def __post_init__(self) -> None:
        settings.settle(
            self,
            factor=settings.number(lambda n: 1 < n < math.inf, "above 1"),
            limit=settings.number(lambda n: 0 < n < math.inf, "positive and finite"),
            progress=settings.number(lambda n: 0 < n < 1, "between 0 and 1"),
        )

    def init(self) -> Any:  # noqa: ANN401
        """Return the residual that any other is progress to."""
        return math.inf

    def update(self, update: Update, memory: Any) -> tuple[Update, Any]:  # noqa: ANN401
        """Raise mu if the residual has shrunk too little."""
        mu = update.mu
        if mu == 0:  # a fixed multiplier has none
            return update, memory
        residual = numbers.choose(update.seen, abs(update.weight - update.before) / mu, 0.0)
        last = numbers.choose(update.seen, memory, 0.0)
        least = max(self.progress * numbers.largest(last), update.tolerance)
        if numbers.largest(residual) > least:
            mu = max(mu, min(self.factor * mu, self.limit))
        return update._replace(mu=mu), numbers.choose(update.seen, residual, memory)
