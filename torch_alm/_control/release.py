"""How a multiplier is given back while its constraint is met."""

from dataclasses import dataclass
from typing import final

from torch_alm._control import numbers


@final
@dataclass(frozen=True)
class Release:
    r"""Give a multiplier back while its constraint is met.

    lambda unwinds at the rate mu times the slack, and a bounded measure has almost no slack: a
    rate that must be at least 0.95 can exceed that by 0.05, so what grew in one step of full
    violation takes twenty to go. With a release, once the (filtered) violation has been at most
    `tolerance` for `after` steps in a row, every update stores

        lambda = (1 - share) [lambda + mu c]_+

    instead of all of it. The weight that acts is not changed. For a constraint that binds at the
    optimum this trades the exact multiplier for a controller that opens and closes; with a larger
    `after`, ordinary fluctuation around alpha does not set it off.

    Args:
        share: what is given back per update, in (0, 1]; 1 drops the multiplier at once.
        after: steps in a row in which the constraint has to be met first.

    Raises:
        ValueError: if `share` is not in (0, 1] or `after` below 1.

    Source: the leaky integrator of anti-windup control (Astrom and Hagglund 1995, section 3.5),
    here switched on by satisfaction.

    Example:
        >>> from torch_alm import ALMConstraint
        >>> constraint = ALMConstraint(
        ...     None, alpha=0.95, mu=0.5, multiplier=1.0, release=Release(share=0.5, after=2)
        ... )
        >>> for rate in (0.97, 0.97, 0.97):  # met, with a slack of 0.02
        ...     constraint.observe(rate)
        ...     _ = constraint.step()
        ...     print(round(constraint.multiplier, 3))
        0.99
        0.49
        0.24
    """

    share: float
    after: int = 1

    def __post_init__(self) -> None:
        """Convert and check both."""
        share = numbers.tried(numbers.single, self.share)
        after = numbers.tried(numbers.steps, self.after)
        if not (isinstance(share, float) and 0 < share <= 1):
            raise ValueError(
                f"Release: share is {share!r}; it must be above 0 and at most 1. Did you mean "
                "to leave `release` out?"
            )
        if not (isinstance(after, (int, float)) and after >= 1):
            raise ValueError(
                f"Release: after is {after!r}; a number of steps is at least 1. Did you mean 1, at "
                "once?"
            )
        object.__setattr__(self, "share", share)
        object.__setattr__(self, "after", after)
