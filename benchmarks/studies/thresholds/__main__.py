"""Targets and pressures: one loop with other numbers, over a decade of rates.

python -m benchmarks.studies.thresholds targets    six targets, on gradient and on step
python -m benchmarks.studies.thresholds pressures  scale="step": mu over three decades
python -m benchmarks.studies.thresholds choose     what a recommendation is chosen from
python -m benchmarks.studies.thresholds others     targets for methods that raise another loss
python -m benchmarks.studies.thresholds presets    `paper` and `recommended`
python -m benchmarks.studies.thresholds overshoot  full batches and minibatches; a mu that is found

All of them on the embedded world, or with `--data DIR --split forget01` on TOFU's files. A finished
run is a line of `results.jsonl` and is not repeated; `--tables` only writes table and figure again.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.engine import levels
from benchmarks.engine.matching import SEARCH_SEED
from benchmarks.engine.options import add_arguments, checked, script_parser
from benchmarks.engine.runner import summary, unlearn
from benchmarks.report.results import ResultsFolder, Row
from benchmarks.studies.thresholds import report
from benchmarks.studies.thresholds.variants import PARTS, RATES, SEARCHES, Variant
from benchmarks.tasks.tofu.task import Tofu, add_data_arguments, load_data

KEPT = (
    *("model_utility", "retain_exact_match", "retain_probability", "real_authors_probability"),
    *("world_facts_probability", "forget_exact_match", "forget_loss", "forget_rouge"),
    *("certificate", "forget_quality_log10", "membership_auc", "forget_truth_ratio"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Do the runs that are left, then write table and figure."""
    parser = script_parser("thresholds", __doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--tables", action="store_true", help="only write table and figure again")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="learning rates")
    parser.add_argument("--only", nargs="+", metavar="KEY", help="these variants alone")
    add_arguments(parser)
    add_data_arguments(parser)
    given = parser.parse_args(argv)
    try:
        data = load_data(given)
        options = checked(given, name="", preset="recommended", levels=Tofu.layout.levels)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    embedded = given.data is None and given.model is None
    name = data.name if embedded else f"{data.name}-{data.split}"
    root = given.output or Path("results") / "thresholds"
    folder = ResultsFolder(root / f"{name}-{given.part}")
    if not given.tables:
        torch.set_num_threads(1)
        run(Tofu(data, given, options), folder, given)
    report.publish(folder.path, given.part)
    return 0


def run(benchmark: Tofu, folder: ResultsFolder, given: argparse.Namespace) -> None:
    """Every run that has no line yet; a reference model has one line for all seeds."""
    every = PARTS[given.part](benchmark.split)
    variants = [one for one in every if one.key in (given.only or [one.key])]
    wanted = {f"{one.key}@{rate:g}": (one, rate) for one in variants for rate in given.rates}
    first = given.seed + (SEARCH_SEED if given.part in SEARCHES else 0)
    seeds = range(first, first + given.seeds)
    folder.claim(description(benchmark, wanted), overwrite=given.overwrite)
    finished = folder.finished()
    references = [key for key in benchmark.references if (key, first) not in finished]
    left = [(key, seed) for seed in seeds for key in wanted if (key, seed) not in finished]
    if left or references:
        benchmark.prepare()
    for key in references:
        folder.append({"method": key, "seed": first, **measured(benchmark, key, None, given.part)})
    for key, seed in tqdm(left, desc="runs", unit="run", smoothing=0):
        folder.append(one_run(benchmark, key, seed, *wanted[key], given.part))


def description(benchmark: Tofu, wanted: dict[str, tuple[Variant, float]]) -> dict[str, Any]:
    """Describe what a result depends on, without where its data lay."""
    settings = {key: dataclasses.asdict(one.at(rate)) for key, (one, rate) in wanted.items()}
    identity = {**benchmark.identity(), "data": benchmark.data.name}
    return {**identity, "methods": settings, "versions": {"torch": torch.__version__}}


def one_run(benchmark: Tofu, key: str, seed: int, one: Variant, rate: float, part: str) -> Row:
    """Unlearn once and measure; a target that cannot be calibrated is a row that says so."""
    row: Row = {"method": key, "variant": one.key, "rate": rate, "seed": seed}
    settings = one.at(rate)
    try:
        settings = levels.resolved(settings, benchmark)
    except ValueError as error:
        if str(settings.alpha).startswith("rate"):
            return {**row, "failed": str(error)}
        raise
    model, trace, seconds = unlearn(benchmark, one.method, seed, settings)
    beyond = {"overshoot_epoch": overshoot_epoch(trace, benchmark.steps_per_epoch(settings))}
    found = {**measured(benchmark, key, model, part), **summary(trace), **beyond}
    return {**row, **found, "seconds": seconds}


def overshoot_epoch(trace: Sequence[Row], steps: int) -> float | None:
    """Find how far beyond alpha the mean over an epoch ever was: a batch's noise is not in it."""
    seen = [row["violation"] for row in trace if "lambda" in row]
    if not seen:
        return None
    means = [fmean(seen[i : i + steps]) for i in range(0, len(seen) - steps + 1, steps)]
    return max([0.0, *(-mean for mean in means)])


def measured(benchmark: Tofu, key: str, model: Any, part: str) -> Row:
    """The numbers kept; a choice goes by those that need no generated text."""
    model = benchmark.reference(key) if model is None else model
    quick = part in ("choose", "overshoot")
    found = benchmark.quick_eval(model) if quick else benchmark.evaluate(model).numbers
    return {name: found.get(name) for name in KEPT}


if __name__ == "__main__":
    raise SystemExit(main())
