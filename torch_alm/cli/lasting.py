"""Streams that outlive their readers: what cannot be said is dropped, and the command goes on."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any

UNHEARD = (OSError, ValueError)  # the reader has gone, the disk is full; the stream is closed


class Lasting:
    """A stream of text that drops what it cannot write."""

    def __init__(self, stream: Any) -> None:  # noqa: ANN401
        self.stream = stream

    def write(self, text: str) -> int:
        """Write, with an escape for each character that the stream has no bytes for."""
        encoding = self.stream.encoding or "utf-8"
        with suppress(*UNHEARD):
            self.stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        """Hand on what was written."""
        with suppress(*UNHEARD):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self.stream, name)


@contextmanager
def lasting() -> Iterator[None]:
    """Let nothing that is said end what is done, whatever becomes of the terminal or the pipe."""
    with open(os.devnull, "w") as nowhere:
        streams = [stream or nowhere for stream in (sys.stdout, sys.stderr)]
        try:
            with redirect_stdout(Lasting(streams[0])), redirect_stderr(Lasting(streams[1])):
                yield
        finally:
            for stream in streams:
                _end(stream, nowhere.fileno())


def _end(stream: Any, nowhere: int) -> None:  # noqa: ANN401
    """Flush; what cannot be goes nowhere, since Python would try again, and exit with a code."""
    try:
        stream.flush()
    except UNHEARD:
        with suppress(*UNHEARD):
            os.dup2(nowhere, stream.fileno())
