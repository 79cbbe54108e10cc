r"""WMDP, or a small world of the same kind: train, unlearn with RMU's losses, and compare.

python benchmarks/wmdp.py                                  the embedded world, eight methods
python benchmarks/wmdp.py --methods all --seeds 5          every method, mean and deviation
python benchmarks/wmdp.py --model NAME_OR_PATH --data DIR --mmlu DIR \
    --forget cyber=CORPUS --retain CORPUS                  a causal LM; your own corpora
"""

from collections.abc import Sequence

from benchmarks.engine.script import run_script
from benchmarks.tasks.wmdp.task import Wmdp, WmdpOptions


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when every run is finished."""
    return run_script(argv, __doc__, WmdpOptions, Wmdp)


if __name__ == "__main__":
    raise SystemExit(main())
