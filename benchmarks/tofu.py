"""TOFU, or a small world of the same kind: train, unlearn with several methods, and compare.

python benchmarks/tofu.py                                  the embedded world, four methods
python benchmarks/tofu.py --methods all --seeds 5          every method, mean and deviation
python benchmarks/tofu.py --data DIR --split forget05      TOFU's JSON-lines files
python benchmarks/tofu.py --model NAME_OR_PATH             a causal LM; TOFU from the hub
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks import report
from benchmarks.matching import matched
from benchmarks.options import add_arguments, checked
from benchmarks.runner import begin, run
from benchmarks.tofu_task import Tofu, add_data_arguments, load_data


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when every run is finished."""
    parser = argparse.ArgumentParser(
        prog="tofu.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    add_data_arguments(parser)
    given = parser.parse_args(argv)
    try:
        data = load_data(given)
        name = f"{data.name}-{data.split}"
        preset = "paper" if given.model else "recommended"
        options = checked(given, name=name, preset=preset, levels=Tofu.layout.levels)
        benchmark = Tofu(data, given, options)
        plan = begin(benchmark, options)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if options.match is not None:
        plan = matched(plan)
    run(plan)
    report.publish([plan.folder.path])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
