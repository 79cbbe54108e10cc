"""Count how often the host waits for a device: on a device, or on tensors that only look like it.

On a CPU nothing waits for anything, and the optimizers take other ways there. The stand-in is
tensors without data on a device that is not there: they take the device's ways, and every call that
would have waited is counted.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.engine.counters import Answers, Fake

aten = torch.ops.aten
SHAPED_BY_DATA = (
    *(aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim, aten.unique_consecutive),
    *(aten.equal, aten.repeat_interleave),
)
INDEXING = (aten.index, aten.index_put, aten.index_put_)


class Waits(TorchDispatchMode):
    """Calls inside that would wait for a device that is not the host, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if waits(func.overloadpacket, args, given):
            self.found.append(str(func))
        return func(*args, **given)


def waits(name: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a call cannot return before the device has come to it."""
    if name is aten._local_scalar_dense or name in SHAPED_BY_DATA:
        return is_away(args[0])
    if name is aten._to_copy:
        home = torch.device(kwargs.get("device") or args[0].device)
        return is_away(args[0]) != (home.type != "cpu") and not kwargs.get("non_blocking")
    if name in (aten.copy_, aten._foreach_copy_):
        late = kwargs.get("non_blocking") or (len(args) > 2 and args[2])
        return crosses(*args[:2]) and not late
    if name in INDEXING:
        masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
        return any(map(is_away, masks))
    return False


def crosses(to: Any, source: Any) -> bool:
    """Whether tensors, or some of a list, are copied between the host and a device."""
    if isinstance(to, Tensor):
        return is_away(to) != is_away(source)
    return any(map(crosses, to, source))


def is_away(tensor: Any) -> bool:
    """Whether this is on a device that the host would have to wait for."""
    return isinstance(tensor, Tensor) and tensor.device.type not in ("cpu", "meta")


class Event:
    """A CUDA event, as far as one is used: to wait for it is to wait."""

    found: list[str]

    def record(self, _: Any = None) -> None:
        """Nothing is under way."""

    def synchronize(self) -> None:
        """Count it."""
        self.found.append("event")


def current_stream(device: torch.device) -> None:
    """Like CUDA's, of which the host has none.

    Raises:
        ValueError: the device is no CUDA device.
    """
    if device.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {device}")


@contextmanager
def stand_in() -> Iterator[list[str]]:
    """Inside, `device="cuda"` makes tensors without data; the list is of what would have waited."""
    with ExitStack() as stack:
        for mode in (Fake(), Answers()):
            stack.enter_context(mode)
        counted = stack.enter_context(Waits())
        event = type("CountedEvent", (Event,), {"found": counted.found})
        for name, double in {
            "is_available": lambda: True,
            "Event": event,
            "current_stream": current_stream,
            "is_current_stream_capturing": lambda: False,
        }.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, double))
        yield counted.found


@contextmanager
def warned() -> Iterator[list[str]]:
    """What CUDA itself says about synchronising calls inside: the lines that made them."""
    found: list[str] = []
    earlier = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(earlier)
            said = [w for w in caught if "synchroniz" in str(w.message)]
            found += [f"{w.filename.rpartition('/')[2]}:{w.lineno}" for w in said]


@contextmanager
def profiled() -> Iterator[list[str]]:
    """What the profiler saw wait inside, but for its own wait at the end."""
    found: list[str] = []
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        yield found
    names = [event.name for event in profile.events()]
    found += [n for n in names if n in ("cudaStreamSynchronize", "cudaEventSynchronize")]
