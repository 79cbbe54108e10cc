"""Guards around changes of weights, gradients and multipliers that happen whole or not at all.

Ctrl-C waits (`held`, `run`), a failure has a way back (`remember`), torch.compile stays out
(`eager`), and a pass that does not count is marked as such (`running`).
"""

import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from threading import get_ident
from types import FrameType
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")
Call: TypeAlias = Callable[[], object]

OURS = __name__.partition(".")[0] + "."

# By thread, whether the pass it runs counts; `None` after its last. An objective may measure in
# threads of its own, which know nothing of the one that runs it: see `is_first_pass`.
_passes: dict[int, bool | None] = {}


def eager(method: Callable[P, T]) -> Callable[P, T]:
    """Run a method as it is written, also inside a function that is compiled.

    Traced, its changes to `.grad`, theta and Python's own objects are replayed between the pieces
    of a graph, not always in the order they are written in. A compiled model stays compiled inside.
    """

    @functools.wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_compiling():
            untraced: Any = torch.compiler.disable(method)
            return untraced(*args, **kwargs)
        return method(*args, **kwargs)

    return run


class _Hold:
    """Python's handler of SIGINT, replaced by one that remembers."""

    handler: Any = None
    _came: tuple[int, FrameType | None] | None = None

    def remember(self, number: int, frame: FrameType | None) -> None:
        """Keep a signal for later."""
        self._came = (number, frame)

    def end(self) -> None:
        """Give the handler its place back and hand it what came; once more does no harm."""
        if self.handler is None:
            return
        signal.signal(signal.SIGINT, self.handler)
        handler, self.handler = self.handler, None
        if self._came is not None:
            handler(*self._came)


@contextmanager
def held() -> Iterator[None]:
    """Hold back Ctrl-C until the block is done.

    Signals arrive in the main thread, and only there may their handler be replaced.
    """
    hold = _Hold()
    is_main = threading.current_thread() is threading.main_thread()
    try:
        try:
            if is_main and callable(signal.getsignal(signal.SIGINT)):
                hold.handler = signal.signal(signal.SIGINT, hold.remember)
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
            while calls:
                _, _ = calls[0](), calls.pop(0)  # in one line: an interrupt finds it made or not
        except KeyboardInterrupt:
            while 0 < len(calls) < count:
                _, _ = calls[0](), calls.pop(0)
            raise


def remember(*objects: object) -> Callable[[], None]:
    """Return a function that gives the objects, and those of this library in them, what they hold.

    Attributes are remembered, not copied: what they hold is replaced by our code, never changed,
    but for lists of this library, whose entries are remembered, too. Objects of ours are found in
    plain lists as well.

    Cost: about 5 us for a constraint.
    """
    found: dict[int, tuple[object, dict[str, object], list[object]]] = {}
    waiting = [*objects]
    while waiting:
        each = waiting.pop()
        if id(each) in found:
            continue
        attributes = dict(vars(each))
        found[id(each)] = (each, attributes, list(each) if isinstance(each, list) else [])
        held = (v if type(v) is list else (v,) for v in attributes.values())
        ours = (v for v in chain.from_iterable(held) if type(v).__module__.startswith(OURS))
        waiting += [value for value in ours if getattr(value, "__dict__", None)]

    def undo() -> None:
        for each, attributes, entries in found.values():
            vars(each).clear()
            vars(each).update(attributes)
            if isinstance(each, list):
                each[:] = entries

    return undo


@contextmanager
def running(*, counts: bool) -> Iterator[None]:
    """Mark everything inside as a pass; one within a pass that does not count does not either."""
    here = get_ident()
    outer = _passes.get(here)
    try:
        try:
            _passes[here] = counts and outer is not False
            yield
        finally:
            _passes[here] = outer
    finally:
        _passes[here] = outer  # an interrupt may have cut the first one short


def is_first_pass(home: int) -> bool:
    """Tell whether a measurement made here and now is one of a pass that does not count.

    What counts is the pass that this thread runs. If it runs none, it may be one of those in which
    an objective measures, and the pass is the one of `home`, the thread of whoever measures.
    """
    found = _passes.get(get_ident())
    return (_passes.get(home) if found is None else found) is False


def is_running(home: int) -> bool:
    """Tell whether a measurement made here and now is one of a pass at all."""
    return any(_passes.get(thread) is not None for thread in (get_ident(), home))
