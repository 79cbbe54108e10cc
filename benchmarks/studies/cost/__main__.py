"""The cost of a step against one of Dual AdamW: operations, memory, time.

    python -m benchmarks.studies.cost [--sections NAME ...] [--models 1B 3B 7B] [--quick]

*flops*: operations and peak memory of a step of Llama models with 1, 3 and 7 billion weights,
counted on tensors without data (for which transformers has to be 5 or later): nothing is computed,
nothing is timed. *wall*: seconds of a step of a small Llama on this CPU, every method once per
round, medians of the ratio to the Dual AdamW step beside it. *compile*: the same with
`torch.compile`, against the same without. *run*: whole runs on the embedded world of TOFU's
benchmark. *perturb*: perturbing and restoring, in multiples of one `copy_`. What a GPU takes is a
study of its own, `benchmarks.studies.accelerator`.

Sections that are run replace theirs in `cost.json`; `cost.md` is written from it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.engine.counters import Answers, Memory
from benchmarks.report import tables
from benchmarks.report.results import parsed, read_record, write_record
from benchmarks.studies.cost import overhead
from benchmarks.studies.cost.compiled import compiled
from benchmarks.studies.cost.overhead import timed
from benchmarks.studies.cost.runs import whole_runs
from benchmarks.studies.cost.steps import METHODS, SHAPES, SMALL, TINY, Method, Training, llama
from benchmarks.studies.machine import machine
from torch_alm import perturbed

Rows = list[dict[str, Any]]

# Counted


def flops(quick: bool, models: list[str]) -> Rows:
    """Per method and model: operations and peak memory of a step, the mean over its rhythm."""
    rows: Rows = []
    for model in ["tiny"] if quick else models:
        base: dict[str, Any] = {}
        for method in METHODS:
            found = counted(TINY if quick else SHAPES[model], method, (4, 32 if quick else 512))
            base = base or found
            extra = found["peak bytes"] - base["peak bytes"]
            row = {
                "model": model,
                "method": method.name,
                **found,
                "ratio": found["flops"] / base["flops"],
                "target": method.target,
                "memory ratio": found["peak bytes"] / base["peak bytes"],
                "extra copies": extra / found["parameter bytes"],
            }
            rows.append(row)
            print(f"{model:5} {method.name:46} {row['ratio']:.3f} x", flush=True)
    return rows


def counted(shape: tuple[Any, ...], method: Method, batch: tuple[int, int]) -> dict[str, Any]:
    """A rhythm of steps after the first two, in which mu is found and moments are made."""
    with torch.device("meta"), Memory() as memory, Answers():
        training = Training(llama(shape), method, torch.zeros(batch, dtype=torch.long))
        size = sum(p.nbytes for p in training.model.parameters())
        for _ in range(2):
            training.step()
        memory.restart()
        for _ in range(method.rhythm):
            training.step()
        peak = memory.peak  # before the counter below, which keeps graphs alive
        with FlopCounterMode(display=False) as counter:
            for _ in range(method.rhythm):
                training.step()
    operations = counter.get_total_flops() / method.rhythm
    return {"flops": operations, "peak bytes": peak, "parameter bytes": size}


# Timed


def wall(quick: bool) -> Rows:
    """Seconds per step, every method in turn; ratios are to the Dual AdamW steps just before."""
    torch.manual_seed(0)
    shape, rounds = (TINY, 3) if quick else (SMALL, 12)
    trainings = [
        Training(llama(shape), method, torch.randint(0, shape[5], (4, 64))) for method in METHODS
    ]
    for training in trainings:
        training.step()
    ratios: dict[str, list[float]] = {m.name: [] for m in METHODS}
    seconds: dict[str, list[float]] = {m.name: [] for m in METHODS}
    for _ in range(rounds):
        for training in trainings:
            count = training.method.rhythm
            base = timed(trainings[0].step)
            mine = statistics.mean(timed(training.step) for _ in range(count))
            seconds[training.method.name].append(mine)
            ratios[training.method.name].append(mine / base)
    return [
        {
            "method": method.name,
            "milliseconds": 1e3 * statistics.median(seconds[method.name]),
            "ratio": statistics.median(ratios[method.name]),
            "quartiles": statistics.quantiles(ratios[method.name], n=4)[::2],
            "target": method.target,
        }
        for method in METHODS
    ]


TARGETS = {
    ("float32", "perturbed, nearest"): 3.8,
    ("float32", "perturbed, nearest, swap"): 2.4,
    ("bfloat16", "perturbed, nearest"): 4.5,
    ("bfloat16", "perturbed, stochastic"): 7.0,
}


def perturb(quick: bool) -> Rows:
    """Perturbing and restoring, in multiples of `copy_`."""
    shapes = overhead.llama_shapes(1, 2000) if quick else overhead.llama_shapes(6, 8000)
    rows: Rows = []
    for dtype, roundings in (
        (torch.float32, ["nearest"]),
        (torch.bfloat16, ["nearest", "stochastic"]),
    ):
        weights = overhead.Weights(shapes, dtype)
        work = {"copy_": overhead.plain_copy(weights)}
        for rounding in roundings:
            for swap in (False, True):
                name = f"perturbed, {rounding}{', swap' * swap}"
                visit = partial(perturbed, weights.params, overhead.RHO, memory={})
                visit = partial(visit, rounding=rounding, swap=swap)
                work[name] = overhead.there_and_back(weights, visit)
        work["two steps, pointer restore"] = overhead.two_steps(weights, swap=True)
        work["pytorch_optimizer SAM"] = overhead.pytorch_optimizer_sam(weights, foreach=False)
        pairs = overhead.rounds(work, "copy_", 4 if quick else 10)
        for name, measured in pairs.items():
            ratio = statistics.median(mine / its for mine, its in measured)
            target = TARGETS.get((str(dtype)[6:], name))
            rows.append({"dtype": str(dtype)[6:], "way": name, "ratio": ratio, "target": target})
    return rows


# Written


SECTIONS: dict[str, Callable[[argparse.Namespace], Rows]] = {
    "flops": lambda options: flops(options.quick, options.models),
    "wall": lambda options: wall(options.quick),
    "compile": lambda options: compiled(options.quick),
    "run": lambda options: whole_runs(options.quick),
    "perturb": lambda options: perturb(options.quick),
}
TITLES = {
    "flops": "Operations and peak memory of a step, counted (4 x 512 tokens, float32)",
    "wall": "Time of a step of a small Llama on the CPU (4 x 64 tokens, bfloat16 autocast)",
    "compile": "Time of a step with `torch.compile`, relative to the same step without",
    "run": "Training seconds of a whole run on the embedded world (20 epochs, medians of 3 seeds)",
    "perturb": "Perturb and restore, in multiples of `copy_`",
}


COLUMNS = (
    *("model", "dtype", "method", "way", "flops", "gate open", "milliseconds", "seconds"),
    *("compiled again", "ratio", "quartiles", "target", "memory ratio", "extra copies"),
)


def markdown(content: dict[str, Any]) -> str:
    parts = ["# Cost\n", "Written by `python -m benchmarks.studies.cost`; numbers in `cost.json`."]
    for section in SECTIONS:
        found = content.get(section)
        if not found:
            continue
        where = ", ".join(f"{k} {v}" for k, v in found["machine"].items() if v is not None)
        parts += [f"\n## {TITLES[section]}\n", f"{where}\n", table(found["rows"])]
    return "\n".join(parts) + "\n"


def table(rows: Rows) -> str:
    """One Markdown table; `target` is met or not in a word."""
    names = [name for name in COLUMNS if name in rows[0]]
    return tables.markdown(names, ([cell(name, row) for name in names] for row in rows), "---")


def cell(name: str, row: dict[str, Any]) -> str:
    value = row[name]
    if name == "target":
        return (
            "" if value is None else f"{value:.2f}, {'met' if row['ratio'] <= value else 'not met'}"
        )
    if name == "flops":
        return f"{value:.3e}"
    if isinstance(value, list):
        return " to ".join(f"{v:.2f}" for v in value)
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="cost", description=__doc__.partition("\n")[0])
    parser.add_argument("--sections", nargs="+", default=[*SECTIONS], choices=[*SECTIONS])
    parser.add_argument("--models", nargs="+", default=[*SHAPES], choices=[*SHAPES])
    parser.add_argument("--quick", action="store_true", help="toy sizes, to see it run")
    parser.add_argument("--threads", type=int, default=1)
    return parsed(parser, arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    content = read_record(options.output, "cost")
    for section in options.sections:
        rows = SECTIONS[section](options)
        if section == "flops":  # models that were not counted now keep their rows
            old = content.get(section, {}).get("rows", [])
            kept = [row for row in old if row["model"] not in {row["model"] for row in rows}]
            rows = sorted(kept + rows, key=lambda row: row["model"])
        content[section] = {"machine": machine(), "rows": rows}
        write_record(options.output, "cost", content, markdown)
        print(table(content[section]["rows"]), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
