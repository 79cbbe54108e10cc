"""MUSE, or a small world of the same kind: train, unlearn with several methods, and compare.

python benchmarks/muse.py                                  the embedded world, four methods
python benchmarks/muse.py --methods all --seeds 5          every method, mean and deviation
python benchmarks/muse.py --model NAME_OR_PATH             a causal LM; MUSE from the hub
python benchmarks/muse.py --model NAME_OR_PATH --data DIR  the same, from MUSE's JSON files
"""

from collections.abc import Sequence

from benchmarks.engine.script import run_script
from benchmarks.tasks.muse.task import Muse, MuseOptions


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when every run is finished."""
    return run_script(argv, __doc__, MuseOptions, Muse)


if __name__ == "__main__":
    raise SystemExit(main())
