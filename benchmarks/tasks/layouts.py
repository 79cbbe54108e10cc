"""The layouts of all tasks, by the name that a task gives itself in `settings.json`."""

from __future__ import annotations

from benchmarks.report.layout import Layout
from benchmarks.tasks.muse.layout import LAYOUT as MUSE
from benchmarks.tasks.tofu.layout import LAYOUT as TOFU
from benchmarks.tasks.wmdp.layout import LAYOUT as WMDP

LAYOUTS = {"muse": MUSE, "tofu": TOFU, "wmdp": WMDP}


def named(benchmark: str) -> Layout:
    """The layout of a benchmark.

    Raises:
        ValueError: There is no such benchmark; the message lists those there are.
    """
    if benchmark not in LAYOUTS:
        raise ValueError(
            f"no table is known for the benchmark {benchmark!r}; its results cannot be shown. "
            f"Known: {', '.join(LAYOUTS)}. Was the folder written by another version?"
        )
    return LAYOUTS[benchmark]
