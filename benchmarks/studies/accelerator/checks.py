"""A line of the study: a named check or measurement, and what came of it."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

Seen = dict[str, Any]
Line = dict[str, Any]

# Forking a fresh server is faster than a new interpreter each; Windows has only the latter.
START = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


class Absent(Exception):
    """A check cannot be made here; the message names what it needs."""


class Place(NamedTuple):
    """The device that the study runs on.

    Attributes:
        device: what is under test, `cuda` or, to see that the study itself works, `cpu`.
        quick: toy sizes.
        traces: a folder for profiles of the timed steps.
    """

    device: torch.device
    quick: bool = False
    traces: Path | None = None

    @property
    def is_cuda(self) -> bool:
        """Tell whether this is a real card."""
        return self.device.type == "cuda"

    def need_cuda(self, what: str) -> None:
        """Leave a check out where there is no CUDA.

        Raises:
            Absent: there is none.
        """
        if not self.is_cuda:
            raise Absent(f"{what} needs CUDA")

    @staticmethod
    def need_package(name: str, what: str) -> None:
        """Leave a check out where a package is missing.

        Raises:
            Absent: it is not installed.
        """
        if find_spec(name) is None:
            raise Absent(f"{what} needs {name}")

    def settle(self) -> None:
        """Wait for the device, so that an error is that of the check that caused it."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)


class Check(NamedTuple):
    """`run` returns what it saw, and raises if that is wrong."""

    name: str
    run: Callable[[Place], Seen]


def outcome(check: Check, place: Place) -> Line:
    """One line; nothing that a check raises goes further."""
    began = time.perf_counter()
    try:
        seen = check.run(place)
        place.settle()
        found: Line = {"status": "ok", "seen": seen}
    except (Absent, torch.OutOfMemoryError) as reason:
        found = {"status": "not run", "why": sentence(reason)}
    except Exception as error:
        found = {"status": "failed", "why": sentence(error), "traceback": traceback.format_exc()}
    return {"name": check.name, **found, "seconds": time.perf_counter() - began}


def broken(section: str, error: BaseException) -> Line:
    """The line of a section that cannot even say what it would check."""
    return {"name": f"all of {section}", "status": "failed", "why": sentence(error), "seconds": 0.0}


def sentence(error: BaseException) -> str:
    """Name and message of an error in one line."""
    said = " ".join(str(error).split()) or "without a message"
    return said if isinstance(error, Absent) else f"{type(error).__name__}: {said[:400]}"


def check_close(found: Any, expected: Any, atol: float) -> Seen:
    """Measure how far two lists of tensors are apart, which must be at most `atol`."""
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if a.numel()]
    difference = max((float((a - b).detach().abs().max()) for a, b in pairs), default=0.0)
    if not difference <= atol:
        raise AssertionError(f"differs by {difference:.3g}, where {atol:.3g} is rounding")
    return {"difference": difference}


def check_equal(found: Any, expected: Any, what: str) -> None:
    """Compare bit for bit; NaN equals nothing."""
    pairs = zip(found, expected, strict=True)
    wrong = sum(not torch.equal(a, b) for a, b in pairs)
    if wrong:
        raise AssertionError(f"{what}: {wrong} of {len(found)} tensors differ")


def check(truth: object, what: str) -> None:
    """Like `assert`, which `python -O` leaves out."""
    if not truth:
        raise AssertionError(what)
