"""Callbacks that end a training: its measure says that it is forgotten, or its answers do."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState

from torch_alm._constraint.state import STATUSES
from torch_alm.constraint import ALMConstraint
from torch_alm.group import ConstraintGroup
from torch_alm.integrations.transformers._callback import MET
from torch_alm.language import Row, answer_ids
from torch_alm.language._generation import decode, read_answers
from torch_alm.language._models import Tokenizer

Constraint: TypeAlias = ALMConstraint | ConstraintGroup


class StopOnStatus(TrainerCallback):
    """A callback that ends the training once a constraint has a status, by default `released`.

    Released means met, with a multiplier of 0: nothing pushes any more, and a longer run would only
    train the retain side. One batch may meet a constraint by luck; ask for several steps in a row,
    or give the constraint a filter (`torch_alm.filters.Mean`). A step that does not measure
    (`probe_every` of `SAULTrainer`) does not count.

    A constraint that has held from its first measurement has released nothing, and ends nothing.

    Args:
        constraint: that of the trainer.
        status: one of those of `ALMConstraint.metrics`.
        times: measured steps in a row.

    Raises:
        ValueError: for a status that there is not.

    Warns:
        UserWarning: where it stops on what was measured under dropout, or would have stopped on a
            constraint that never acted.

    Example:
        >>> from torch_alm.filters import Mean
        >>> constraint = ALMConstraint(None, alpha=2.0, mu=0.1, filter=Mean(window=8))
        >>> stop = StopOnStatus(constraint, times=5)  # Trainer(callbacks=[stop])
    """

    def __init__(self, constraint: Constraint, status: str = "released", *, times: int = 1) -> None:
        if status not in STATUSES:
            raise ValueError(
                f"StopOnStatus: no constraint has the status {status!r}, so that nothing would "
                f"stop. Did you mean one of {', '.join(STATUSES)}?"
            )
        self.constraint, self.status, self.times = constraint, status, times
        self._key = f"StopOnStatus {name_of(constraint)} {status} {times}"

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Count in `trainer_state.json`, so that the count survives a resume."""
        metrics, name = self.constraint.metrics(), f"torch_alm.{self._key}"
        counts = cast(dict[str, Any], state.stateful_callbacks)
        before, counts[f"{name} steps"] = counts.get(f"{name} steps"), metrics["steps"]
        if metrics["steps"] == before:
            return
        status = metrics["status"]
        is_idle = status == "never_active" != self.status and self.status in MET
        counts[name] = counts.get(name, 0) + 1 if is_idle or status == self.status else 0
        if is_idle and counts[name] == self.times:
            warnings.warn(
                f"StopOnStatus: `{name_of(self.constraint)}` has held from its first measurement: "
                "it has never acted, and the run goes on. Are `sense` and alpha what you mean?",
                stacklevel=2,
            )
        if is_idle or counts[name] < self.times:
            return
        control.should_training_stop = True
        if self.status in MET and has_dropout(given["model"]):
            warnings.warn(
                f"StopOnStatus: {self.status} as measured under dropout, whose noise passes for "
                "forgetting. Does an evaluation say the same?",
                stacklevel=2,
            )


class AskingCallback(TrainerCallback):
    """A callback that asks the rows to forget, and ends the training once none is said.

    A loss in a batch says little of what a model answers; this asks it, greedily, in `eval` mode.
    `asked/said` in the logs is how many rows are said. Every rank asks all of them, and weights
    that are sharded cannot be asked.

    Args:
        tokenizer: the model's.
        rows: with a prompt, as `torch_alm.language.encode` makes them.
        every: steps between two askings.
        said: of the model's words and the row's, whether these count as said; the row's words
            anywhere in the others, in either case of letters, if `None`.
        max_new_tokens: of an answer.

    Raises:
        ValueError: if there is nothing to ask.

    Cost: one forward pass per row and new token, batched, every so many steps.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        rows: Sequence[Row],
        *,
        every: int = 10,
        said: Callable[[str, str], bool] | None = None,
        max_new_tokens: int = 64,
    ) -> None:
        if not rows or every < 1:
            raise ValueError(
                f"AskingCallback: {len(rows)} rows every {every} steps are never asked, so that it "
                "would never stop. Are they the rows to forget?"
            )
        self.tokenizer, self.rows, self.every = tokenizer, rows, every
        self.said, self.max_new_tokens = said or contains, max_new_tokens
        self._found: int | None = None

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Ask, every so many steps."""
        if state.global_step % self.every:
            return
        limit = self.max_new_tokens
        readings = read_answers(given["model"], self.tokenizer, self.rows, max_new_tokens=limit)
        words = [decode(self.tokenizer, answer_ids(row)) for row in self.rows]
        pairs = zip(readings, words, strict=True)
        self._found = sum(self.said(reading.text or "", word) for reading, word in pairs)
        if not self._found:
            control.should_training_stop = True

    def on_log(self, args: Any, state: TrainerState, *_: Any, logs: Any = None, **__: Any) -> None:
        """Log how many rows were said when they were asked last."""
        if self._found is not None and "loss" in (logs or {}):
            logs["asked/said"] = state.log_history[-1]["asked/said"] = self._found


def contains(text: str, words: str) -> bool:
    """Return whether a text has these words in it."""
    return bool(words) and words.casefold() in text.casefold()


def has_dropout(model: nn.Module) -> bool:
    """Return whether a forward pass of the training has dropout."""
    shares = [getattr(m, key, 0) for m in model.modules() for key in ("p", "attention_dropout")]
    return any(isinstance(share, float) and share > 0 for share in shares)


def name_of(constraint: ALMConstraint | ConstraintGroup) -> str:
    """Name a constraint by what it asks for, the same after a resume."""
    if isinstance(constraint, ConstraintGroup):
        return ", ".join(f"{key}: {name_of(member)}" for key, member in constraint.items())
    measure = getattr(constraint.measure, "__qualname__", "value")
    return f"{measure} {constraint.sense} {constraint.alpha}"
