"""The loop behind every benchmark script: which runs are left, one run, and its row of results."""

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

from benchmarks import methods
from benchmarks.engine.benchmark import Benchmark
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


def begin_runs(benchmark: Benchmark, options: Options) -> Plan:
    """Take the output folder and make the benchmark ready, if there is anything left to do.

    Raises:
        ValueError: The folder belongs to other settings, or a model cannot be loaded.
    """
    preset = options.preset or ("paper" if options.model else "recommended")
    overrides = options.overrides(benchmark.losses)
    presets = {
        key: benchmark.presets.preset(preset, benchmark.split, key, overrides)
        for key in options.keys(benchmark.losses)
    }
    name = f"{benchmark.data.name}-{benchmark.split}"
    folder = ResultsFolder(options.output or Path("results") / name)
    plan = Plan(benchmark, options, folder, {key: p.settings for key, p in presets.items()})
    described = {
        "options": options.identity(),
        "split": benchmark.split,
        "methods": {key: dataclasses.asdict(s) for key, s in plan.settings.items()},
        "notes": {key: p.note for key, p in presets.items() if p.note},
        "torch": torch.__version__,
    }
    folder.claim(described, overwrite=options.overwrite)
    if list_unfinished(plan):
        benchmark.prepare()
    return plan


def run(plan: Plan) -> None:
    """Do every run that is not finished yet, each written down as soon as it is."""
    with tqdm(list_unfinished(plan), desc="runs", unit="run", smoothing=0) as bar:
        for key, seed in bar:
            bar.set_postfix_str(f"{key}, seed {seed}")
            finish_run(plan, key, seed)


def list_unfinished(plan: Plan) -> list[tuple[str, int]]:
    """The runs without a line yet; a reference model needs one line for all seeds."""
    finished = {(row["method"], row["seed"]) for row in plan.folder.rows()}
    known = {method for method, _ in finished}
    seeds = plan.options.all_seeds()
    references = [(key, seeds[0]) for key in plan.benchmark.references if key not in known]
    wanted = [(key, seed) for seed in seeds for key in plan.settings]
    return references + [pair for pair in wanted if pair not in finished]


def finish_run(plan: Plan, key: str, seed: int) -> None:
    """One run from start to its line in the results; the line is written last."""
    if key in plan.benchmark.references:
        model, trace, seconds = plan.benchmark.copy_reference(key), [], 0.0
    else:
        model, trace, seconds = unlearn(plan.benchmark, key, seed, plan.settings[key])
    measured = plan.benchmark.evaluate(model)
    plan.folder.write("traces", key, seed, trace)
    plan.folder.write("answers", key, seed, measured.rows)
    row = {"method": key, "seed": seed, **measured.numbers, **summary(trace), "seconds": seconds}
    plan.folder.append(row)


def unlearn(
    benchmark: Benchmark, key: str, seed: int, settings: Settings
) -> tuple[nn.Module, list[Row], float]:
    """Run a method on a copy of the original model.

    Returns:
        The model, what happened in each step, and the seconds it took.
    """
    settings = benchmark.resolve_settings(settings)
    torch.manual_seed(seed)
    model = benchmark.copy_reference("original").train()
    method = methods.build(key, model, settings)
    per_epoch = benchmark.steps_per_epoch(settings)
    trace: list[Row] = []
    started = time.perf_counter()
    steps = tqdm(
        benchmark.batches(settings, seed),
        total=per_epoch * settings.epochs,
        desc=f"{key}, seed {seed}",
        unit="step",
        position=1,
        leave=False,
        disable=None,  # in a log a line per run is enough
    )
    for step, (retain, forget) in enumerate(steps, 1):
        method.step(retain, forget)
        trace.append({"step": step, **method.metrics()})
        if step % per_epoch == 0:
            method.end_epoch()
    return model.eval(), trace, time.perf_counter() - started


def summary(trace: list[Row]) -> dict[str, float | str | None]:
    """The controller's part of the table; all of it is missing (null) where there is none.

    Returns:
        Share of steps with an open gate; the last lambda; alpha; the status at the end.
    """
    controlled = [row for row in trace if "lambda" in row]
    if not controlled:
        return dict.fromkeys(("gate_open", "lambda", "alpha", "status"))
    last = {name: controlled[-1][name] for name in ("lambda", "alpha", "status")}
    opened = sum(row["gate_open"] for row in controlled) / len(controlled)
    return {"gate_open": opened, **last}
