"""One rule for mu beside tuning: problems with known optima, seven optimizers each.

python -m benchmarks.studies.auto [--quick] [--only PROBLEM ...]
    [--also seeds fresh float32 units]
    [--output DIR]

DIR receives `auto.json` and, written from it, `auto.md`; a run that was stopped goes on from what
it left in `DIR/cells`. cooper is needed; humancompatible-train is
compared where it is installed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.report.results import write_record
from benchmarks.studies.auto.compare import KINDS, SIDES, Comparison, joined
from benchmarks.studies.auto.suite import SUITE
from benchmarks.studies.auto.table import page

ALSO = tuple(KINDS)[1:]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps: a smoke test")
    parser.add_argument("--only", nargs="+", choices=[kind.__name__ for kind in SUITE])
    parser.add_argument("--also", nargs="*", choices=ALSO, default=list(ALSO))
    parser.add_argument("--output", type=Path, metavar="DIR", help="where to write the numbers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    suite = [kind for kind in SUITE if not options.only or kind.__name__ in options.only]
    kept = None if options.output is None else options.output / "cells"
    comparison = Comparison(suite, 200 if options.quick else 2000, kept)
    rows = []
    for kind, side in ((k, s) for k in ("main", *options.also) for s in SIDES):
        for found in comparison.run(kind, side):
            rows = joined([*rows, *found])
            print(f"{kind}, {side}: {found[0]['problem']}", flush=True)
            if options.output is not None:
                write_record(options.output, "auto", {"rows": rows}, lambda c: page(c["rows"]))
    print(page(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
