"""The sections, in the order in which they run, and the lines of one."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from benchmarks.studies.accelerator.checks import Line, Place, broken, outcome

SECTIONS = {
    "exact": "Algorithm 1 by hand, edges, bits that return",
    "random": "Dropout is the same in both passes",
    "bases": "Optimizers in all their implementations",
    "graphs": "CUDA graphs and `torch.compile`",
    "scaler": "float16 under a GradScaler",
    "placement": "Sparse gradients, weights on the host, models that move",
    "waits": "How often the host waits for the device",
    "memory": "Peak memory against what is counted before a run",
    "time": "Time of a step beside one of Dual AdamW, and of a perturbation beside a copy",
    "seven": "Seven billion weights",
    "ranks": "Two ranks",
}
MODULES = {"random": "replay", "time": "timing"}


def lines(name: str, place: Place) -> Iterator[Line]:
    """What came of each check; a section that cannot be loaded is one line."""
    try:
        module = importlib.import_module(f"{__package__}.{MODULES.get(name, name)}")
        found = module.checks(place)
    except Exception as error:
        yield broken(name, error)
        return
    for check in found:
        yield outcome(check, place)
