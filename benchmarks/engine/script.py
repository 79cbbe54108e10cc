"""The way of every benchmark script from its command line to its tables."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.engine import ranks
from benchmarks.engine.matching import matched
from benchmarks.engine.options import add_arguments, checked
from benchmarks.engine.runner import begin, run
from benchmarks.report.page import publish


def run_script(
    argv: Sequence[str] | None,
    prog: str,
    doc: str | None,
    add_data_arguments: Callable[[argparse.ArgumentParser], None],
    load_data: Callable[[argparse.Namespace], Any],
    benchmark: Callable[..., Any],
) -> int:
    """Run a benchmark; 0 when every run is finished.

    Args:
        argv: The arguments; those of the process if None.
        prog: Name of the script.
        doc: Its description, shown by `--help`.
        add_data_arguments: Adds what to unlearn, and from which model.
        load_data: The task that was asked for; it has a `name` and a `split`.
        benchmark: The `Benchmark` class; made from the data, the arguments and the options.
    """
    parser = argparse.ArgumentParser(
        prog=prog, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    add_data_arguments(parser)
    given = parser.parse_args(argv)
    with ranks.joined():
        try:
            data = load_data(given)
            name = f"{data.name}-{data.split}"
            preset = "paper" if given.model else "recommended"
            levels, losses = benchmark.layout.levels, benchmark.losses
            options = checked(given, name=name, preset=preset, levels=levels, losses=losses)
            plan = begin(benchmark(data, given, options), options)
        except (ValueError, OSError) as error:
            parser.error(str(error))
        if options.match is not None:
            plan = matched(plan)
        run(plan)
        if ranks.is_first():
            publish([plan.folder.path], benchmark.layout)
    return 0
