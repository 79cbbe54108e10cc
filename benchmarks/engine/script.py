"""Run a benchmark script, from the command line to the tables."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.engine.benchmark import Benchmark
from benchmarks.engine.options import Options, parse
from benchmarks.engine.runner import Plan, begin_runs, run
from benchmarks.report.page import publish

INTERRUPTED = 130  # as shells say


def run_script(
    argv: Sequence[str] | None,
    doc: str | None,
    kind: type[Options],
    make: Callable[[Any], Benchmark],
    look: Callable[[Plan], None] | None = None,
) -> int:
    """Run a benchmark; 0 when every run is finished, 130 after a Ctrl-C.

    `look` is called with the finished runs before they are published.
    """
    parser, options = parse(kind, argv, doc)
    try:
        plan = begin_runs(make(options), options)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    try:
        run(plan)
        if look is not None:
            look(plan)
    except KeyboardInterrupt:
        where = f"{plan.folder.path} has what is finished"
        print(f"\nStopped; {where}, and the same command goes on from there.", file=sys.stderr)
        return INTERRUPTED
    publish(plan.folder, plan.benchmark.layout)
    return 0
