"""Let Ctrl-C wait where stopping half-way would leave weights, gradients and multipliers torn."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeAlias

Call: TypeAlias = Callable[[], object]


class _Hold:
    """Python's handler of SIGINT, replaced by one that remembers."""

    def __init__(self) -> None:
        self._handler: Any = None
        self._came: tuple[int, FrameType | None] | None = None

    def begin(self) -> None:
        """Take the handler's place; only the main thread may, and only there do signals arrive."""
        if threading.current_thread() is not threading.main_thread():
            return
        if callable(signal.getsignal(signal.SIGINT)):
            self._handler = signal.signal(signal.SIGINT, self._remember)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._came = (number, frame)

    def end(self) -> None:
        """Give the handler its place back and hand it what came; once more does no harm."""
        if self._handler is None:
            return
        signal.signal(signal.SIGINT, self._handler)
        handler, self._handler = self._handler, None
        if self._came is not None:
            handler(*self._came)


@contextmanager
def held() -> Iterator[None]:
    """Hold back Ctrl-C until the block is done."""
    hold = _Hold()
    try:
        try:
            hold.begin()
            yield
        finally:
            hold.end()
    finally:
        hold.end()


def run(calls: list[Call]) -> None:
    """Make the calls in order, each once; after the first one an interrupt waits for the last.

    Args:
        calls: each either changes something in a single statement, or may be made again. What is
            made leaves the list, and with it the gradients it was about.
    """
    count = len(calls)
    with held():
        try:
            _go_on(calls)
        except KeyboardInterrupt:
            if len(calls) < count:
                _go_on(calls)
            raise


def _go_on(calls: list[Call]) -> None:
    while calls:
        _, _ = calls[0](), calls.pop(0)  # in one line, which an interrupt finds made or not begun
