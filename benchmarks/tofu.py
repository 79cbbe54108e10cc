"""TOFU, or a small world of the same kind: train, unlearn with several methods, and compare.

python benchmarks/tofu.py                                  the embedded world, four methods
python benchmarks/tofu.py --methods all --seeds 5          every method, mean and deviation
python benchmarks/tofu.py --model NAME_OR_PATH             a causal LM; TOFU from the hub
python benchmarks/tofu.py --model NAME_OR_PATH --data DIR  the same, from TOFU's JSON-lines files
"""

from collections.abc import Sequence

from benchmarks.engine.script import run_script
from benchmarks.tasks.tofu.task import Tofu, TofuOptions, judge_runs


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when every run is finished."""
    return run_script(argv, __doc__, TofuOptions, Tofu, judge_runs)


if __name__ == "__main__":
    raise SystemExit(main())
