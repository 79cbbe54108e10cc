"""A run watched from outside: what is measured now and then, and what follows from it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_alm.cli.methods import Method
from torch_alm.cli.pacing import EVERY, MOST, Decision, Pacing
from torch_alm.language import Batch
from torch_alm.rules import Leak

SAMPLE = 64  # rows of either kind that a check reads, spread evenly over the file
RAISED = 1.1  # times the level is aimed at: a controller without overshoot ends a hair below it

Batches = Sequence[Batch]


class Guide:
    """A series of checks between the steps of a run: they set its rate, and end it.

    Args:
        method: whose rate it is, and whose model is measured.
        forget: batches to forget.
        retain: batches to keep.
        allowance: nats per token that the retain loss may rise by.
        fixed: whether the method's rate stays as it is.
        ask: tells whether the verdict on the model as it is would be "met".
        known: whether the model said the answers before; if not, no verdict is.

    Attributes:
        ended: why the run is over, `"met"` or `"gave up"`; None while it is not.

    Cost: every `EVERY` steps one forward pass over `SAMPLE` rows of each kind; where those pass,
    the whole asking of the model.
    """

    def __init__(
        self,
        method: Method,
        forget: Batches,
        retain: Batches,
        *,
        allowance: float,
        fixed: bool,
        ask: Callable[[], bool],
        known: bool = True,
    ) -> None:
        self.known = known
        self.method, self.forget, self.retain, self.ask = method, forget, retain, ask
        limit = self._mean(method.retain_loss, retain) + allowance
        self.pacing = Pacing(method.goal.alpha, limit, method.rates.lr, fixed=fixed)
        self.ended: str | None = None
        self.aim = method.goal.alpha
        if not fixed:  # lambda grows while the rate is still too small to answer to it
            method.constraint.rules = (Leak(share=0.5),)
            self._aim_higher()
        self._set()

    def after(self, steps: int) -> None:
        """Check, if it is time."""
        if steps % EVERY == 0 and self.ended is None:
            self._follow(self.pacing.check(*self.look()))
            self._set()

    def look(self) -> tuple[float, float]:
        """The forget value and the retain loss, without dropout."""
        value = self._mean(self.method.measured, self.forget)
        return value, self._mean(self.method.retain_loss, self.retain)

    def told(self, steps: int, most: int) -> str:
        """The reason why the run ended, in a sentence."""
        found = self.pacing
        seen = f"after {steps} of at most {most} steps, at a rate of {found.rate:.1g}"
        if self.ended == "met" and self.known:
            return f"Ended {seen}: the goal is met and has held."
        if self.ended == "met":
            return (
                f"Ended {seen}: the level is reached and has held, by a model that did not say the "
                "answers before either."
            )
        if self.ended is None:
            return f"Ended {seen}: no more steps were allowed. Would a larger --steps do?"
        kept = f"the retain loss is {found.kept:.2f}, and may be {found.limit:.2f}"
        if found.is_kept and found.value >= found.alpha:
            return (
                f"Gave up {seen}: the level is reached, and yet asked in full the goal is not met."
            )
        if found.is_kept:
            lost = "at larger rates too much of the retain rows was lost"
            larger = lost if found.rate < MOST else "no larger rate is tried"
            return (
                f"Gave up {seen}: {larger}, at this one the forget value stays at "
                f"{found.value:.2f}; {kept}."
            )
        return f"Gave up {seen}: the retain side does not keep up; {kept}."

    def reopen(self) -> None:
        """Go on where the run had been ended."""
        self.ended, self.pacing.stalled = None, 0

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs."""
        return {"pacing": self.pacing.state(), "ended": self.ended, "aim": self.aim}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`; a run that ended under another limit is open again."""
        self.pacing.load(state["pacing"])
        is_same = self.pacing.limit == state["pacing"]["limit"]
        self.ended, self.aim = state["ended"] if is_same else None, state["aim"]
        self._set()

    def _follow(self, decision: Decision) -> None:
        if decision == "give up":
            self.ended = "gave up"
        elif decision == "ask":
            self.method.model.eval()
            if self.ask():
                self.ended = "met"
            else:
                self.pacing.failed()
                self._aim_higher()
            self.method.model.train()

    def _aim_higher(self) -> None:
        """Push the rows that are still said, which a mean does not see; a rate ends near 1."""
        if self.method.goal.kind == "loss":
            self.aim *= RAISED

    def _set(self) -> None:
        """Hand on the rate, and the aim: none while the retain rows have to catch up."""
        pauses = not (self.pacing.fixed or self.pacing.is_kept)
        self.method.constraint.alpha = 0.0 if pauses else self.aim
        for group in self.method.optimizer.param_groups:
            group["lr"] = self.pacing.rate

    @torch.no_grad()
    def _mean(self, measure: Callable[[Batch], Tensor], batches: Batches) -> float:
        was = self.method.model.training
        self.method.model.eval()
        sizes = [len(batch["input_ids"]) for batch in batches]
        values = [float(measure(batch)) * n for batch, n in zip(batches, sizes, strict=True)]
        self.method.model.train(was)
        return sum(values) / sum(sizes)


def spread(count: int, most: int = SAMPLE) -> list[int]:
    """At most so many of the first `count` indices, evenly spread."""
    taken = min(count, most)
    return [i * count // taken for i in range(taken)]
