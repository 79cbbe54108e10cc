"""The loop behind every benchmark script: which runs are left, one run, and its row of results."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from benchmarks import methods
from benchmarks.engine import levels, ranks
from benchmarks.engine.benchmark import Benchmark
from benchmarks.engine.digest import digest
from benchmarks.engine.options import Options
from benchmarks.methods import Settings
from benchmarks.report.results import ResultsFolder, Row


@dataclass(frozen=True)
class Plan:
    """Runs to do, their settings, and where the results go."""

    benchmark: Benchmark
    options: Options
    folder: ResultsFolder
    settings: Mapping[str, Settings]


def begin(benchmark: Benchmark, options: Options) -> Plan:
    """Take the output folder and make the benchmark ready, if there is anything left to do.

    Raises:
        ValueError: The folder belongs to other settings, or a model cannot be loaded.
    """
    presets = {
        key: benchmark.presets.preset(options.preset, benchmark.split, key, options.overrides)
        for key in runs(options)
    }
    plan = Plan(
        benchmark,
        options,
        ResultsFolder(options.output),
        {key: found.settings for key, found in presets.items()},
    )
    notes = {key: found.note for key, found in presets.items() if found.note}
    described = description(plan) | {"notes": notes}
    ranks.from_first(lambda: plan.folder.claim(described, overwrite=options.overwrite))
    if unfinished(plan):
        benchmark.announce(plan.settings)
        with ranks.first_goes_first():
            benchmark.prepare()
    return plan


def description(plan: Plan) -> dict[str, Any]:
    """Make the content of `settings.json`: enough to tell if two runs belong in one table."""
    options = plan.options
    return {
        **plan.benchmark.identity(),
        "files": digests(plan.benchmark.sources()),
        "preset": options.preset,
        "quick": options.quick,
        "match": None if options.match is None else list(options.match),
        "trials": None if options.match is None else options.trials,
        "refine": None if options.match is None else options.refine,
        "fixed": list(options.fixed),
        "model_setup": dataclasses.asdict(options.model_setup),
        "overrides": [f"{name}={value}" for name, value in sorted(options.overrides.items())],
        "methods": {key: dataclasses.asdict(found) for key, found in plan.settings.items()},
        "versions": {"torch": torch.__version__},
    }


def digests(sources: Mapping[str, Path]) -> dict[str, str]:
    """The digest of each source that lies here, by its option."""
    found = {name: digest(path) for name, path in sources.items()}
    return {name: each for name, each in found.items() if each is not None}


def run(plan: Plan) -> None:
    """Do every run that is not finished yet, each written down as soon as it is."""
    with tqdm(unfinished(plan), desc="runs", unit="run", smoothing=0, disable=hidden()) as bar:
        for key, seed in bar:
            bar.set_postfix_str(f"{key}, seed {seed}")
            finish(plan, key, seed)


def unfinished(plan: Plan) -> list[tuple[str, int]]:
    """The runs without a line yet; a reference model needs one line for all seeds."""
    finished = ranks.from_first(plan.folder.finished)
    known = {method for method, _ in finished}
    seeds = plan.options.seeds
    references = [(key, seeds[0]) for key in plan.benchmark.references if key not in known]
    wanted = [(key, seed) for seed in seeds for key in runs(plan.options)]
    return references + [pair for pair in wanted if pair not in finished]


def runs(options: Options) -> tuple[str, ...]:
    """The keys of what is trained for each seed: the control first, unless it is left out."""
    return (methods.CONTROL, *options.methods) if options.control else options.methods


def finish(plan: Plan, key: str, seed: int) -> None:
    """One run from start to its line in the results; the line is written last."""
    if key in plan.benchmark.references:
        model, trace, seconds = plan.benchmark.reference(key), [], 0.0
    else:
        model, trace, seconds = unlearn(plan.benchmark, key, seed, plan.settings[key])
    measured = ranks.from_first(lambda: plan.benchmark.evaluate(model))
    if not ranks.is_first():
        return
    plan.folder.write_trace(key, seed, trace)
    plan.folder.write_answers(key, seed, measured.answers)
    plan.folder.append(
        {"method": key, "seed": seed, **measured.numbers, **summary(trace), "seconds": seconds}
    )


def unlearn(
    benchmark: Benchmark, key: str, seed: int, settings: Settings
) -> tuple[nn.Module, list[Row], float]:
    """Run a method on a copy of the original model.

    Returns:
        The model, what happened in each step, and the seconds it took.
    """
    if methods.is_controlled(key):
        settings = levels.resolved(benchmark.resolved(settings), benchmark)
    torch.manual_seed(seed)
    model = benchmark.reference("original").train()
    ranks.average_gradients(model)
    method = methods.build(key, model, settings)
    per_epoch = benchmark.steps_per_epoch(settings)
    trace: list[Row] = []
    started = time.perf_counter()
    with tqdm(
        total=per_epoch * settings.epochs,
        desc=f"{key}, seed {seed}",
        unit="step",
        position=1,
        leave=False,
        disable=hidden(),
    ) as bar:
        for step, (retain, forget) in enumerate(benchmark.batches(settings, seed), 1):
            method.step(ranks.share(retain), ranks.share(forget))
            trace.append({"step": step, **ranks.averaged(method.metrics())})
            if step % per_epoch == 0:
                method.end_of_epoch()
            bar.update()
    return model.eval(), trace, time.perf_counter() - started


def hidden() -> bool:
    """Tell whether to hide progress: on all ranks but the first."""
    return not ranks.is_first()


def summary(trace: list[Row]) -> dict[str, float | str | None]:
    """The controller's part of the table; all of it is missing (null) where there is none.

    Returns:
        Share of steps with an open gate; the last lambda; alpha; how far the measure ever went
        beyond it; the first step that found it met; the status at the end.
    """
    controlled = [row for row in trace if "lambda" in row]
    if not controlled:
        return dict.fromkeys(("gate_open", "lambda", "alpha", "overshoot", "met_at", "status"))
    last = controlled[-1]
    return {
        "gate_open": sum(row["gate_open"] for row in controlled) / len(controlled),
        "lambda": last["lambda"],
        "alpha": last["alpha"],
        "overshoot": max(0.0, *(-row["violation"] for row in controlled)),
        "met_at": next((row["step"] for row in controlled if row["violation"] <= 0), None),
        "status": last["status"],
    }
