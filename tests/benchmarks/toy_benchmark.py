"""A benchmark over the toy model: everything the runner needs, in a second."""

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import nn

from benchmarks.engine.benchmark import Benchmark, Evaluation
from benchmarks.engine.options import Options
from benchmarks.methods import Settings
from benchmarks.tasks.tofu.task import Tofu
from tests.benchmarks.toy import FORGET, Batch, batch, ce, memorised


class ToyBenchmark(Benchmark):
    """Forget one batch, keep others; utility is the probability of what is kept."""

    layout = Tofu.layout
    presets = Tofu.presets

    def __init__(self, options: Options) -> None:
        super().__init__(options, SimpleNamespace(name="toy", split="forget01"))
        self.evaluated = self.prepared = 0

    def load(self, key: str) -> tuple[Any, Any]:
        raise NotImplementedError

    def encode(self) -> Any:
        raise NotImplementedError

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
        forget = math.exp(-ce(model, FORGET).item())
        numbers = {
            "forget_loss": ce(model, FORGET).item(),
            "forget_probability": forget,
            "forget_rouge": forget,
            "model_utility": math.exp(-ce(model, batch(1)).item()),
        }
        row = {"subset": "forget", "index": 0, "question": "q", "reference": "r"}
        return Evaluation(numbers, [{**row, "generation": "r", "rouge": 1.0}])


def options(output: Path, **changes: Any) -> Options:
    """A checked command line for the toy."""
    return Options(**{"output": output, "control": False, "epochs": "3", "lr": "0.02", **changes})
