"""The loop: every step of a run, its bar, and where it can be stopped and taken up again."""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from time import monotonic
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from torch_alm.cli.guide import Guide
from torch_alm.cli.methods import Method, reference_nll
from torch_alm.cli.saying import bar
from torch_alm.language import Batch, Row, collate, pairs
from torch_alm.unlearning.models import trainable
from torch_alm.unlearning.refusal import Refusal

MOST_STEPS = 1_000_000
BAR = "{desc}|{bar}| {n_fmt}/{total_fmt} {remaining}{postfix}"


class Stopped(Exception):
    """The user has asked to stop, and the run stands between two steps."""


class Training:
    """A method at work on rows.

    Args:
        method: what is done.
        forget: rows to forget.
        retain: rows to keep.
        pad: fills rows of a batch.
        epochs: passes over the forget rows.
        batch_size: rows of either kind per pass.
        seed: of the order.
        accumulate: passes per step: a step is one on so many times as many rows.
        steps: takes so many at most, in place of `epochs`.

    Attributes:
        guide: sets the rate and ends the run; None takes all steps at the method's rate.
        trace: a row of numbers per step taken.
    """

    def __init__(
        self,
        method: Method,
        forget: list[Row],
        retain: list[Row],
        pad: int,
        *,
        epochs: int,
        batch_size: int,
        seed: int,
        accumulate: int = 1,
        steps: int | None = None,
    ) -> None:
        self.method, self.forget, self.retain, self.pad = method, forget, retain, pad
        self.device = method.params[0].device
        method.rows_at_once = batch_size
        size = batch_size * accumulate
        if steps is not None:
            epochs = ceil(steps / ceil(len(forget) / size))
        if (most := epochs * ceil(len(forget) / size)) > MOST_STEPS:
            raise Refusal(
                f"{most} steps of {size} rows are more than {MOST_STEPS}, which no run takes. Is a "
                "--steps or --epochs too large?"
            )
        order = pairs(range(len(forget)), range(len(retain)), size, epochs, seed)
        self.order = list(order)[:steps]
        self.guide: Guide | None = None
        self.trace: list[dict[str, float]] = []
        self.reference: Tensor | None = None
        if method.needs_reference:
            batches = self.batches(forget, range(len(forget)), batch_size)
            self.reference = reference_nll(method.model, batches)

    @property
    def steps(self) -> int:
        """The most that are taken."""
        return len(self.order)

    @property
    def is_over(self) -> bool:
        """True if there is no step left, or the guide has ended the run."""
        ended = self.guide is not None and self.guide.ended is not None
        return ended or len(self.trace) >= self.steps

    @property
    def ended(self) -> str | None:
        """The reason why the run is over, in a sentence."""
        return None if self.guide is None else self.guide.told(len(self.trace), self.steps)

    def reopen(self) -> None:
        """Go on with a run that was over."""
        if self.guide is not None:
            self.guide.reopen()

    def run(self, label: str, save: Callable[[], None], minutes: float) -> None:
        """Take the steps that are left, and call `save` between two of them every so many minutes.

        Raises:
            Stopped: after the step in which the user asked for it.
        """
        self.method.model.train()
        left = self.order[len(self.trace) :]
        saved = monotonic()
        with _asked_to_stop() as stop, bar(label, BAR, self.steps, len(self.trace)) as shown:
            for retain, forget in left:
                if self.is_over:
                    break
                seen = self.method.step(*self.pair(retain, forget))
                self.trace.append(self._numbers(seen.retain, seen.forget))
                shown.set_postfix_str(postfix(self.trace[-1]), refresh=False)
                shown.update()
                if self.guide is not None:
                    self.guide.after(len(self.trace))
                if stop:
                    raise Stopped
                if monotonic() - saved > 60 * minutes:
                    save()
                    saved = monotonic()
        self.method.model.eval()

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs: weights, method, random state, trace."""
        weights = {name: p.detach().cpu() for name, p in trainable(self.method.model).items()}
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return {
            "weights": weights,
            "method": self.method.state(),
            "random": [torch.get_rng_state(), *cuda],
            "trace": self.trace,
            "guide": None if self.guide is None else self.guide.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`."""
        with torch.no_grad():
            for name, p in trainable(self.method.model).items():
                p.copy_(state["weights"][name])
        self.method.load(state["method"])
        cpu, *cuda = state["random"]
        torch.set_rng_state(cpu)
        if cuda and len(cuda) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(cuda)
        self.trace = list(state["trace"])
        if self.guide is not None:
            self.guide.load(state["guide"])

    def batches(self, rows: list[Row], chosen: Sequence[int], size: int) -> list[Batch]:
        """The chosen rows, so many at once, where the model computes."""
        parts = [[*chosen[i : i + size]] for i in range(0, len(chosen), size)]
        return [self._batch(rows, part) for part in parts]

    def pair(self, retain: list[int], forget: list[int]) -> tuple[Batch, Batch]:
        """The batches of a step: of the rows to keep, and of those to forget."""
        batch = self._batch(self.forget, forget)
        if self.reference is not None:
            batch["reference_nll"] = self.reference[forget]
        return self._batch(self.retain, retain), batch

    def _batch(self, rows: list[Row], chosen: list[int]) -> Batch:
        batch = collate([rows[i] for i in chosen], self.pad)
        return {name: tensor.to(self.device) for name, tensor in batch.items()}

    def _numbers(self, retain: float, forget: float) -> dict[str, float]:
        seen = self.method.constraint.metrics()
        return {
            "retain_loss": retain,
            "forget": forget,
            "violation": seen["violation"],
            "lambda": seen["multiplier"],
            "weight": seen["weight"],
            "lr": self.method.optimizer.param_groups[0]["lr"],
        }


def postfix(numbers: Mapping[str, float]) -> str:
    """Retain loss and controller in a width that stays, so that the bar beside it does."""
    gate = "open" if numbers["weight"] > 0 else "closed"
    kept = f"retain {numbers['retain_loss']:.2f}, lambda {numbers['lambda']:.3f}"
    return f"{kept}, violation {numbers['violation']:+.2f}, {gate:<6}"


@contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """A list that is empty until the first Ctrl-C (or SIGTERM); the second one interrupts."""
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    names = (signal.SIGINT, signal.SIGTERM)
    before = {name: signal.signal(name, ask) for name in names}
    try:
        yield asked
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
