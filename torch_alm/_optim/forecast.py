"""The next step at which a released constraint is worth measuring."""

import math

LATEST = 16  # steps between two measurements, at most


class Forecast:
    """The earliest step at which a released constraint may be violated, halved for safety.

    Of a slack s = -c (positive where the constraint is met), measured `gap` steps after the last,

        now = (s_last - s) / gap                   its approach to 0 per step, over this gap
        error <- (error + |s_last - speed gap - s|) / 2
        speed <- max(now, (speed + now) / 2)       at once towards faster, by halves towards slower
        interval = (s - error / 2) / (2 speed),    rounded down, in [1, LATEST]

    `error` is what minibatch noise leaves of a prediction. Every step measures until two
    values are known, and where s is no more than half an error.

    A constraint that approaches, over the interval, no faster per step than twice what it did over
    the last gap, and did approach, is measured in the very step in which it is first violated. In
    any case one that is violated is measured at most `LATEST - 1` steps later.

    Under SAM a measurement begins at theta, where the constraint is met by more than at the
    perturbed point: by `drop` when it was last measured, `age` steps ago. Where it is met by more
    than

        2^(1 + age / LATEST) |drop|,   age < LATEST,

    nothing but s - drop is taken in, and the next one comes while `age` is at most `LATEST`. A drop
    that at most doubles, and once more in `LATEST` steps, hides no violation.
    """

    def __init__(self) -> None:
        """Know nothing: measure every step."""
        self.slack = self.speed = math.nan
        self.error = 0.0
        self.interval = 1
        self.drop, self.age = math.nan, 0

    def is_far(self, slack: float, gap: int) -> bool:
        """Tell whether a slack at theta says enough, `gap` steps after the last.

        Where that slack or the drop is not known, it does not.
        """
        age = self.age + gap
        return age < LATEST and slack > 2 ** (1 + age / LATEST) * abs(self.drop)

    def look(self, slack: float, gap: int) -> None:
        """Take in a slack at theta that says enough."""
        age = self.age + gap
        self.update(slack - self.drop, gap, self.drop)
        self.age, self.interval = age, min(self.interval, LATEST - age)

    def update(self, slack: float, gap: int | None, drop: float = math.nan) -> None:
        """Take in the slack of a step that measured.

        Args:
            slack: `nan` where it is not known.
            gap: steps since the last one; `None` for the first since the gate was open.
            drop: what of the slack at theta the perturbation has taken; `nan` if not known.
        """
        self.drop, self.age = drop, 0
        last, self.slack, self.interval = self.slack, slack, 1
        if gap is None or not math.isfinite(last - slack):
            self.speed = math.nan
            return
        now = (last - slack) / gap
        if math.isnan(self.speed):
            self.speed, self.error = now, 0.0
        else:
            self.error = (self.error + abs(last - self.speed * gap - slack)) / 2
            self.speed = max(now, (self.speed + now) / 2)
        left = slack - self.error / 2
        if left > 0:
            steps = left / (2 * self.speed) if self.speed > 0 else math.inf
            self.interval = max(1, int(min(steps, LATEST)))
