"""A section in a process of its own: what breaks a device, or hangs on it, ends there."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection

from benchmarks.studies.accelerator.checks import START, Line, Place, broken
from benchmarks.studies.accelerator.sections import lines

PATIENCE = 420.0  # seconds until a check that does not answer is given up


def lines_apart(name: str, place: Place, patience: float = PATIENCE) -> Iterator[Line]:
    """`lines`, with one more where the process dies or goes silent."""
    context = multiprocessing.get_context(START)
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(there, name, place))
    process.start()
    there.close()
    try:
        while True:
            if not here.poll(patience):
                yield broken(name, TimeoutError(f"no answer within {patience:g} seconds"))
                return
            line = here.recv()
            if line is None:
                return
            yield line
    except EOFError:
        process.join()
        yield broken(name, RuntimeError(f"its process died with exit code {process.exitcode}"))
    finally:
        process.kill()
        process.join()


def _answer(end: Connection, name: str, place: Place) -> None:
    for line in lines(name, place):
        end.send(line)
    end.send(None)
