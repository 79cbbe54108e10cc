"""Section 9: what a step takes beside one of Dual AdamW, and a perturbation beside a copy."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.studies.accelerator.checks import Check, Place, Seen
from benchmarks.studies.cost.steps import METHODS, SHAPES, Method, Training, llama, trace
from torch_alm import perturbed

TOY = (16, 32, 1, 2, 2, 64, True)
SIZES = {"0.1B": (768, 3072, 12, 12, 12, 32_000, True)} | {n: SHAPES[n] for n in ("1B", "3B")}
WAYS: tuple[tuple[torch.dtype, dict[str, Any]], ...] = (
    (torch.float32, {}),
    (torch.float32, {"swap": True}),
    (torch.bfloat16, {}),
    (torch.bfloat16, {"swap": True}),
    (torch.bfloat16, {"rounding": "stochastic"}),
)


def checks(place: Place) -> list[Check]:
    """Steps of each size, then the perturbation alone."""
    sizes = {"toy": TOY} if place.quick else SIZES
    steps = [
        Check(f"{name}: {method.name}", partial(beside.step, method=method))
        for name, beside in {name: Beside(shape) for name, shape in sizes.items()}.items()
        for method in METHODS
    ]
    alone = [
        Check(
            f"perturb and restore, {', '.join([str(dtype)[6:], *map(str, settings.values())])}",
            partial(there_and_back, dtype=dtype, settings=settings),
        )
        for dtype, settings in WAYS
    ]
    return steps + alone


class Beside:
    """Steps on a random Llama of one shape, the first of which sets the measure."""

    def __init__(self, shape: tuple[Any, ...]) -> None:
        self.shape = shape
        self.base: float | None = None

    def step(self, place: Place, method: Method) -> Seen:
        """Seconds, tokens per second, peak memory, and the multiple of the first method's time."""
        rows = (2, 16) if place.quick else (4, 512)
        reset(place)
        torch.manual_seed(0)
        with torch.device(place.device):
            ids = torch.randint(0, self.shape[5], rows)
            training = Training(llama(self.shape), method, ids)
        training.step()
        count = method.rhythm if place.quick else 4 * method.rhythm
        seconds = timed(place, training.step, count)
        if place.traces is not None:
            trace(training, place.traces)
        self.base = self.base or seconds
        peak = torch.cuda.max_memory_allocated(place.device) / 1e9 if place.is_cuda else None
        return {
            "seconds": seconds,
            "tokens per second": 2 * ids.numel() / seconds,
            "peak GB": peak,
            "ratio": seconds / self.base,
        }


def reset(place: Place) -> None:
    """Let go of what earlier checks left, and begin to count memory."""
    gc.collect()
    if place.is_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(place.device)


def timed(place: Place, run: Callable[[], Any], count: int) -> float:
    """Seconds of one of so many calls, the device's work included."""
    place.settle()
    began = time.perf_counter()
    for _ in range(count):
        run()
    place.settle()
    return (time.perf_counter() - began) / count


def there_and_back(place: Place, dtype: torch.dtype, settings: dict[str, Any]) -> Seen:
    """Beside a copy of as much, and what that copy reads and writes in a second."""
    reset(place)
    size = 2**8 if place.quick else 2**24
    make = partial(torch.full, (size,), 0.5, device=place.device, dtype=dtype)
    params, directions, copies = ([make() for _ in range(16)] for _ in range(3))
    params = [nn.Parameter(p) for p in params]
    memory: dict[Tensor, Tensor] = {}

    @torch.no_grad()
    def copy() -> None:
        for mine, its in zip(copies, params, strict=True):
            mine.copy_(its)

    def visit() -> None:
        for p, g in zip(params, directions, strict=True):
            p.grad = g
        with perturbed(params, 0.05, memory=memory, **settings):
            pass

    pairs = list(rounds(place, copy, visit))
    copied = statistics.median(its for its, _ in pairs)
    return {
        "seconds": statistics.median(mine for _, mine in pairs),
        "ratio": statistics.median(mine / its for its, mine in pairs),
        "a copy's GB per second": 2 * sum(p.nbytes for p in params) / copied / 1e9,
    }


def rounds(
    place: Place, first: Callable[[], None], second: Callable[[], None]
) -> Iterator[tuple[float, float]]:
    """Both in turn, warm."""
    first()
    second()
    for _ in range(3 if place.quick else 15):
        yield timed(place, first, 1), timed(place, second, 1)
