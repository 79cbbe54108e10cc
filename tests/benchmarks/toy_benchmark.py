"""A benchmark over the toy model: everything the runner needs, in a second."""

import argparse
import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.engine.benchmark import Benchmark, Evaluation
from benchmarks.engine.options import Options, add_arguments, checked
from benchmarks.methods import Settings
from benchmarks.tasks.tofu.layout import LAYOUT
from benchmarks.tasks.tofu.presets import TOFU
from tests.benchmarks.toy import FORGET, Batch, batch, ce, memorised


class ToyBenchmark(Benchmark):
    """Forget one batch, keep others; utility is the probability of what is kept."""

    layout = LAYOUT
    presets = TOFU
    split = "forget01"
    references = ("original", "retrained")

    def __init__(self, **identity: Any) -> None:
        self.described = {"benchmark": "toy", "split": self.split, **identity}
        self.evaluated = self.prepared = 0

    def identity(self) -> dict[str, Any]:
        return self.described

    def prepare(self) -> None:
        self.prepared += 1
        self.models = {"original": memorised(0, 60), "retrained": memorised(1, 60)}

    def reference(self, key: str) -> nn.Module:
        return copy.deepcopy(self.models[key])

    def batches(self, settings: Settings, seed: int) -> Iterator[tuple[Batch, Batch]]:
        for step in range(settings.epochs * self.steps_per_epoch(settings)):
            yield batch(1 + (seed + step) % 3), FORGET

    def steps_per_epoch(self, settings: Settings) -> int:
        return 2

    def evaluate(self, model: nn.Module) -> Evaluation:
        self.evaluated += 1
        numbers = self.quick_eval(model)
        numbers["forget_rouge"] = numbers["forget_probability"]
        numbers["model_utility"] = numbers["retain_probability"]
        row = {"subset": "forget", "index": 0, "question": "q", "reference": "r"}
        return Evaluation(numbers, [{**row, "generation": "r", "rouge": 1.0}])

    def quick_eval(self, model: nn.Module) -> dict[str, float | None]:
        forget = math.exp(-ce(model, FORGET).item())
        kept = math.exp(-ce(model, batch(1)).item())
        return {
            "forget_loss": ce(model, FORGET).item(),
            "forget_probability": forget,
            "forget_exact_match": float(forget > 0.5),
            **{f"{name}_probability": kept for name in ("retain", "real_authors", "world_facts")},
        }


def options(output: Path, *arguments: str, control: bool = False) -> Options:
    """A checked command line for the toy."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    short = ("--epochs", "3", "--lr", "0.02")
    left_out = () if control else ("--no-control",)
    given = parser.parse_args(["--output", str(output), *short, *left_out, *arguments])
    return checked(given, name="toy", preset="recommended", levels=LAYOUT.levels)
