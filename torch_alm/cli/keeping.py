"""A run that nothing can be written of: it stays in memory, and goes on when there is room."""

from collections.abc import Callable
from time import sleep
from typing import TypeVar

from torch_alm.cli.saying import complain
from torch_alm.cli.training import Training
from torch_alm.cli.unfinished import Unfinished
from torch_alm.unlearning.refusal import Unwritten

T = TypeVar("T")
SECONDS, TRIES = 10.0, 360  # between two tries, and how many: an hour


class Keeper:
    """The writer of a run's state, which holds on to it while it cannot be written.

    The state that was last written down stays until the next one is there, whole.

    Attributes:
        kept: the step of the state that was last written down; None where there is none.
        waits: whether it is waiting for room.
    """

    def __init__(self, unfinished: Unfinished, training: Training) -> None:
        self.unfinished, self.training = unfinished, training
        self.kept = len(training.trace) if unfinished.state.is_file() else None
        self.waits = False

    def save(self, **more: object) -> None:
        """Write the state down, and what else shall stand in it.

        Raises:
            Unwritten: it cannot be; the one before stays.
        """
        self.unfinished.save({**self.training.state(), **more})
        self.kept = len(self.training.trace)

    def autosave(self) -> None:
        """Write the state down now and then; where that cannot be done, training goes on."""
        try:
            self.save()
        except Unwritten as problem:
            complain(f"{problem} The run goes on; {self.left}, and the next time is tried again.")

    @property
    def left(self) -> str:
        """The part of the run that would be left if it ended here, in words."""
        if self.kept is None:
            return "nothing of it has been written down yet"
        return f"what was last written down is its step {self.kept}"

    def insist(self, write: Callable[[], T]) -> T:
        """Write; while that cannot be done, try again every ten seconds, for an hour.

        Raises:
            Unwritten: the hour is over.
            KeyboardInterrupt: the user would not wait.
        """
        for _ in range(TRIES):
            try:
                return write()
            except Unwritten as problem:
                self._tell(problem)
            sleep(SECONDS)
        return write()

    def _tell(self, problem: Unwritten) -> None:
        if not self.waits:
            complain(
                f"{problem} The run waits in memory, after step {len(self.training.trace)}, and "
                f"goes on by itself when there is room; {self.left}. Ctrl-C ends it."
            )
        self.waits = True
