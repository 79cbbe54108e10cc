"""The way of every benchmark script from its command line to its tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.engine import ranks
from benchmarks.engine.matching import matched
from benchmarks.engine.options import add_arguments, checked, script_parser
from benchmarks.engine.places import check_places
from benchmarks.engine.runner import Plan, begin, run
from benchmarks.report.page import publish

INTERRUPTED = 130  # as shells say


def run_script(
    argv: Sequence[str] | None,
    prog: str,
    doc: str | None,
    add_data_arguments: Callable[[argparse.ArgumentParser], None],
    load_data: Callable[[argparse.Namespace], Any],
    benchmark: Callable[..., Any],
) -> int:
    """Run a benchmark; 0 when every run is finished, 130 after a Ctrl-C.

    Args:
        argv: The arguments; those of the process if None.
        prog: Name of the script.
        doc: Its description, shown by `--help`.
        add_data_arguments: Adds what to unlearn, and from which model.
        load_data: The task that was asked for; it has a `name` and a `split`.
        benchmark: The `Benchmark` class; made from the data, the arguments and the options.
    """
    parser = script_parser(prog, doc)
    add_arguments(parser)
    add_data_arguments(parser)
    given = parser.parse_args(argv)
    with ranks.joined():
        plan = planned(parser, given, load_data, benchmark)
        try:
            if plan.options.match is not None:
                plan = matched(plan)
            run(plan)
        except KeyboardInterrupt:
            where = f"{plan.folder.path} has what is finished"
            print(f"\nStopped; {where}, and the same command goes on from there.", file=sys.stderr)
            return INTERRUPTED
        if ranks.is_first():
            publish([plan.folder.path], benchmark.layout)
    return 0


def planned(
    parser: argparse.ArgumentParser,
    given: argparse.Namespace,
    load_data: Callable[[argparse.Namespace], Any],
    benchmark: Callable[..., Any],
    folder: str = "",
) -> Plan:
    """The runs that parsed arguments ask for; bad ones end the script with a message.

    Args:
        parser: What parsed them.
        given: The arguments.
        load_data: As in `run_script`.
        benchmark: As in `run_script`.
        folder: Where the output folder lies below `results/`, if none is given.
    """
    try:
        check_places(given)
        data = load_data(given)
        name = f"{folder}{data.name}-{data.split}"
        preset = "paper" if given.model else "recommended"
        levels, losses = benchmark.layout.levels, benchmark.losses
        options = checked(given, name=name, preset=preset, levels=levels, losses=losses)
        return begin(benchmark(data, given, options), options)
    except (ValueError, OSError) as error:
        parser.error(str(error))
