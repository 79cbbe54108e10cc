"""What the numbers of a benchmark are called where they are shown, compared and matched.

A benchmark has one file here, of the name it gives itself in `settings.json`, with a `LAYOUT`.
"""

from __future__ import annotations

import importlib
import pkgutil

from benchmarks.layouts.layout import Axis, Layout, unchanged

__all__ = ["Axis", "Layout", "named", "unchanged"]


def named(benchmark: str) -> Layout:
    """The layout of a benchmark.

    Raises:
        ValueError: There is no such benchmark; the message lists those there are.
    """
    known = [module.name for module in pkgutil.iter_modules(__path__) if module.name != "layout"]
    if benchmark not in known:
        raise ValueError(
            f"no table is known for the benchmark {benchmark!r}; its results cannot be shown. "
            f"Known: {', '.join(known)}. Was the folder written by another version?"
        )
    return importlib.import_module(f"{__name__}.{benchmark}").LAYOUT
