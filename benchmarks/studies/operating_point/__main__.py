"""Utility at equal forgetting over a decade of learning rates.

    python -m benchmarks.studies.operating_point                            the embedded world
    python -m benchmarks.studies.operating_point --data DIR --split forget01
    python -m benchmarks.studies.operating_point --data DIR --base MODEL    a pretrained model
    python -m benchmarks.studies.operating_point --page                     only table and figure

The rule is in `plan.py`. A run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copyfile

from benchmarks import tofu
from benchmarks.engine.options import script_parser
from benchmarks.report.results import RECORDED, ResultsFolder, write_json
from benchmarks.studies.evidence.__main__ import record
from benchmarks.studies.operating_point import report
from benchmarks.studies.operating_point.plan import (
    EVERY,
    KINDS,
    PLAIN,
    RATES,
    REFINED,
    SHARES,
    WORLD,
    Place,
)

KEPT = RECORDED / "operating_point"


def main(argv: Sequence[str] | None = None) -> int:
    """Do the runs that are left, record them, and write tables and figures."""
    parser = script_parser("operating_point", __doc__)
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder of TOFU's files; default: the embedded world",
    )
    add("--split", default="forget01", metavar="NAME", help="of TOFU")
    add("--base", type=Path, metavar="DIR", help="a pretrained model, see `pretrained`")
    add("--replay", action="store_true", help="--base reads on while it is taught")
    add("--lora", type=int, default=0, metavar="RANK", help="unlearn with adapters")
    add("--epochs", type=int, default=0, metavar="N", help="instead of fifty steps")
    add(
        "--unseen",
        choices=SHARES,
        default="",
        help="ask for the share of the tokens that the model gets wrong that never saw them",
    )
    add(
        "--finer",
        action="store_true",
        help="only search, and on by bisection where --output has a search",
    )
    add("--rates", nargs="+", default=RATES, choices=RATES, help="learning rates")
    add("--methods", nargs="+", default=PLAIN, choices=EVERY, help="without the controller's +alm")
    add("--seeds", type=int, default=3, metavar="K", help="fresh seeds")
    add("--output", type=Path, default=Path("results/operating_point"), metavar="DIR")
    add("--page", action="store_true", help="run nothing")
    given = parser.parse_args(argv)
    split = WORLD if given.data is None else given.split
    choices = {
        name: getattr(given, name)
        for name in ("base", "replay", "lora", "epochs", "unseen", "finer")
    }
    place = Place(split, given.seeds, methods=tuple(given.methods), **choices)
    for rate in () if given.page else given.rates:
        for kind in KINDS[:1] if given.finer else KINDS:
            name = place.folder(rate, kind)
            if given.finer:
                go_on(given.output, replace(place, finer=False).folder(rate, kind), name)
            tofu.main(place.arguments(rate, kind, given.data, given.output))
            record(given.output / name, KEPT / name)
    report.write(KEPT)
    return 0


def go_on(folder: Path, coarse: str, finer: str) -> None:
    """Begin a finer search with what a coarse one has tried."""
    source, target = (ResultsFolder(folder / name) for name in (coarse, finer))
    if not source.trials.exists() or target.trials.exists():
        return
    target.path.mkdir(parents=True, exist_ok=True)
    settings = json.loads(source.settings.read_text()) | {"refine": REFINED, "matched": {}}
    write_json(target.settings, settings)
    copyfile(source.trials, target.trials)


if __name__ == "__main__":
    raise SystemExit(main())
